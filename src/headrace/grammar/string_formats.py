"""Formats of strings as expressions of the library (Rust's), where its own forms differ from the specifications."""

from __future__ import annotations

__all__ = ["FORMATS", "PLAIN_FORMATS", "RAW_FORMATS"]

_LEAP_DAY = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_DATE = (
    rf"(?:{_LEAP_DAY}|[0-9]{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_LAST = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"


def _shortened(most: int, behind: str) -> str:
    """Up to `most` groups, `::`, and what is behind it."""
    before = rf"(?:(?:{_GROUP}:){{0,{most - 1}}}{_GROUP})?" if most else ""
    return f"{before}::{behind}"


_IPV6 = "(?:{})".format(
    "|".join(
        [
            rf"(?:{_GROUP}:){{6}}{_LAST}",
            *(_shortened(most, rf"(?:{_GROUP}:){{{5 - most}}}{_LAST}") for most in range(6)),
            _shortened(6, _GROUP),
            _shortened(7, ""),
        ]
    )
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_LABEL}(?:\.{_LABEL})*|\[(?:{_IPV4}|IPv6:{_IPV6})\])"

FORMATS = {
    name: f"^{expression}$"
    for name, expression in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}[Tt]{_TIME}",
        "email": _EMAIL,
        "ipv6": _IPV6,
    }.items()
}
"""Dates and times of RFC 3339 without leap seconds, which most readers refuse; 29 February in leap years alone (the
library's own forms admit it in every year). Mailboxes of RFC 5321, IPv6 addresses of RFC 4291."""

PLAIN_FORMATS = FORMATS | {
    "ipv4": f"^{_IPV4}$",
    "uuid": "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL})*$",
}
"""With those that are for libraries without right forms of their own. Host names of RFC 1123."""

_DAYS = "[0-9]+D"
_MONTHS = f"[0-9]+M(?:{_DAYS})?"
_MINUTES = "[0-9]+M(?:[0-9]+S)?"
_CLOCK = f"T(?:[0-9]+S|{_MINUTES}|[0-9]+H(?:{_MINUTES})?)"
_DURATION = f"P(?:(?:{_DAYS}|{_MONTHS}|[0-9]+Y(?:{_MONTHS})?)(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)"

_UNRESERVED = r"A-Za-z0-9._~!$&'()*+,;=-"
_CODED = "%[0-9A-Fa-f]{2}"
_CHAR = f"(?:[:@{_UNRESERVED}]|{_CODED})"
_HOST = rf"(?:\[(?:{_IPV6}|v[0-9A-Fa-f]+\.[:{_UNRESERVED}]+)\]|(?:[{_UNRESERVED}]|{_CODED})*)"
_AUTHORITY = f"(?:(?:[:{_UNRESERVED}]|{_CODED})*@)?{_HOST}(?::[0-9]*)?"
_TAIL = f"(?:/{_CHAR}*)*"
_PATH = f"(?://{_AUTHORITY}{_TAIL}|/?(?:{_CHAR}+{_TAIL})?)"
_QUERY = f"(?:{_CHAR}|[/?])*"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:{_PATH}(?:\?{_QUERY})?(?:#{_QUERY})?"

RAW_FORMATS = PLAIN_FORMATS | {"duration": f"^{_DURATION}$", "uri": f"^{_URI}$"}
"""With those whose forms the library has for JSON alone. Durations of RFC 3339, appendix A; URIs of RFC 3986."""
