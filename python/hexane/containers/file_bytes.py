"""The bytes of an untrusted file, which are read at offsets that the file itself gives. Every offset is checked, and
errors name the offset."""

from hexane.errors import Error

MOST_NAME_BYTES = 1024


class FileBytes:
    """A whole file. kind: the kind of file, for errors. Names may overlap in a hostile file, so the total size of names
    that are read is limited to the size of the file."""

    def __init__(self, data: bytes, kind: str) -> None:
        self.data, self.kind = data, kind
        self._names = 0  # bytes

    def fail(self, offset: int, what: str) -> Error:
        return Error(f"[{self.kind}] byte {offset}: {what}")

    def check(self, offset: int, size: int, what: str) -> None:
        """Raises Error unless the bytes are inside the file."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise self.fail(offset, f"{what}: got {size} bytes, need them inside a file of {len(self.data)} bytes")

    def number(self, offset: int, size: int, what: str, *, signed: bool = False) -> int:
        """A little-endian integer."""
        self.check(offset, size, what)
        return int.from_bytes(self.data[offset : offset + size], "little", signed=signed)

    def text(self, offset: int, size: int, what: str) -> str:
        """A UTF-8 text of this many bytes."""
        self.check(offset, size, what)
        if size > MOST_NAME_BYTES:
            raise self.fail(offset, f"{what}: got a name of {size} bytes, need at most {MOST_NAME_BYTES}")
        self._names += size
        if self._names > len(self.data):
            raise self.fail(offset, f"{what}: got names of more bytes than the file has, need no overlap")
        try:
            return self.data[offset : offset + size].decode()
        except UnicodeDecodeError:
            raise self.fail(offset, f"{what}: got {self.data[offset : offset + min(size, 20)]!r}, need UTF-8") from None

    def padded(self, offset: int, size: int, what: str) -> str:
        """The text of a field, up to its first zero byte."""
        self.check(offset, size, what)
        end = self.data.find(b"\0", offset, offset + size)
        return self.text(offset, size if end < 0 else end - offset, what)

    def ended(self, offset: int, end: int, what: str) -> str:
        """The text that ends with a zero byte before `end`."""
        zero = self.data.find(b"\0", offset, min(end, offset + MOST_NAME_BYTES + 1)) if offset < end else -1
        if zero < 0:
            raise self.fail(
                offset, f"{what}: got no zero byte before byte {end}, need one within {MOST_NAME_BYTES} bytes"
            )
        return self.text(offset, zero - offset, what)
