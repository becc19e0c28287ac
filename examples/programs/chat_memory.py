"""A conversation of several turns with a memory: a second state keeps a short note of what the user has said.

    headrace program run examples/programs/chat_memory.py 'turns=["I am Ada.", "What is my name?"]' \
        --url http://127.0.0.1:8000 --stream
"""

from __future__ import annotations

from headrace import lang as hl


@hl.program(max_tokens=4000)
def chat(s: hl.State, turns: list[str], memory: str = "nothing yet") -> None:
    s["memory"], s["replies"] = memory, []
    with hl.for_(turns, max=20) as turn:
        talk = hl.new_state()
        talk.system("You are a helpful assistant. You remember of the user: ", s["memory"])
        talk.user(turn)
        talk.assistant(hl.gen("reply", max_tokens=80, temperature=0))
        s.user(turn)
        s.assistant(talk["reply"])
        s["replies"] = s["replies"] + hl.list_of(talk["reply"])
        notes = hl.new_state()
        notes.user("Notes: ", s["memory"], "\nThe user says: ", turn, "\nWrite the notes anew, in one line.")
        notes.assistant(hl.gen("memory", max_tokens=60, temperature=0, stop="\n"))
        s["memory"] = notes["memory"]
