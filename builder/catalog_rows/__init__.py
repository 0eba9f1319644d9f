"""The rows of facts/, one module a topic: typed, read-only views over rows that the schema has accepted.

Every row has `source` and `confidence` (its own, or those of the table it stands in) and `fact`, a short citation.
A view parses a value when it is first asked for, because most runs touch a handful of the thousand rows.
Content is validated by `facts_schema.py`, when facts are written or an overlay is read, not here.
"""
