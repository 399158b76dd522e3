"""A search service over index folders: REST, a page for people, and tools for assistants (MCP)."""
