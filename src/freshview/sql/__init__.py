"""SQL in: statements as records, names bound, texts kept verbatim. Pure."""
