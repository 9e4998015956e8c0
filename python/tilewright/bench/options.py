"""Types of command-line options that operations share."""


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
