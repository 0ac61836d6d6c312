"""The GPT-2 byte alphabet: one printable character for each of the 256 bytes, as byte-level BPE vocabularies spell their tokens."""


def _alphabet() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(256 + number) for number, byte in enumerate(others)})
    return table


CHARACTER_OF_BYTE = _alphabet()
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def spell(data: bytes) -> str:
    """The vocabulary entry that stands for `data`."""
    return "".join([CHARACTER_OF_BYTE[byte] for byte in data])


def unspell(entry: str) -> bytes:
    """The bytes an entry stands for. An entry with a character outside the alphabet (an added token) is plain text."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in entry])
    except KeyError:
        return entry.encode("utf-8", "surrogatepass")
