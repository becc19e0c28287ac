"""The router: one endpoint before several engines, which sends a request where its prompt is cached.

Read in this order: `policy` (where a request goes, as a pure function), `prefix_index` (which engine holds which
blocks), `load_book`, `replica`, `fleet` (all of them together), `replica_watch` (health and events), `upstream` (HTTP
to an engine), `relay` (one request, with a second try), `router_app`, `router_run`. `prompts` reads a request's tokens
as the engine does; `text_prefixes` stands in where it cannot.
"""
