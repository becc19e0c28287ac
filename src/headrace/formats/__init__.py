"""Formats of tool calls and reasoning: one incremental parser, driven by a table per format.

`events` (the results), `values` and `json_reader`, `python_reader`, `nested_reader` with `xml_reader` and
`gemma_reader` (arguments), `states` (the parts of a table), `tool_formats`, `parameter_formats`, `harmony` and
`reasoning_forms` (the tables), `machine` (a model's table, with `stand_ins` for its special tokens), `parser`,
`response_template` and `detection` (which formats a model has), and `call_grammar`, `parameter_grammar` and
`grammar_text` (the grammar that forces a call).
"""
