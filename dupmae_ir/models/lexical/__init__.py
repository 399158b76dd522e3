"""The lexical OT part: stemmed words and word pieces with closed-form weights, no masked-LM head."""
