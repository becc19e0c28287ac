"""Extraction from a document: the answer is an instance of a pydantic class, or the run fails with the reason.

headrace program run examples/programs/json_extraction.py document=@invoice.txt --url http://127.0.0.1:8000
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace import lang as hl


class Invoice(BaseModel):
    supplier: str = Field(max_length=60)
    total: float
    currency: str = Field(pattern="^[A-Z]{3}$")
    paid: bool


@hl.program
def extract(s: hl.State, document: str) -> None:
    s.system("You extract facts from documents. Answer with JSON alone.")
    s.user("Document:\n", document, "\n\nGive supplier, total, currency (three letters) and whether it was paid.")
    s.assistant(hl.gen("invoice", type=Invoice, max_tokens=160, temperature=0))
    hl.require(s["invoice"]["total"] >= 0, "a total is not negative")
