"""Formats of tool calls and reasoning: one incremental parser, driven by a table per format.

`events` (the results), `values` and `json_reader`, `xml_reader`, `python_reader`, `gemma_reader` (arguments), `states`
(the parts of a table), `tool_formats`, `harmony` and `reasoning_forms` (the tables), `parser`, `detection`, and
`call_grammar` (the grammar that forces a call).
"""
