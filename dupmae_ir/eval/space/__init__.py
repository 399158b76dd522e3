"""How queries and passages share the vector space (CoT-MoTE, section 5.3)."""
