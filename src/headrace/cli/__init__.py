"""The command line: `headrace VERB …`. A verb's module is imported when the verb is called, and no earlier."""
