"""The forms of the catalogue's ops in MIL, and the catalogue ops that MIL's ops become."""

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
