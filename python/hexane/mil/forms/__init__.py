"""How the catalogue's ops are written in MIL, and what MIL's ops are read as."""

from collections.abc import Mapping

from hexane.mil.forms import elementwise, indexing, movement, products, quantised, resizing, windows
from hexane.mil.forms.form import Form, MilCall, Read, Write

__all__ = ["FORMS", "READ", "WRITE", "MilCall"]

FORMS: tuple[Form, ...] = tuple(
    form
    for family in (elementwise, movement, products, windows, resizing, quantised, indexing)
    for form in family.FORMS
)
WRITE: Mapping[str, Write] = {form.op: form.write for form in FORMS if form.write is not None}
READ: Mapping[str, Read] = {form.mil: form.read for form in FORMS if form.read is not None}
