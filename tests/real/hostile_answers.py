"""Hostile answers at random: towers of powers, code, deep brackets, long numbers and texts."""

import random

TOWER = "9^{9^{9^9}}"
CODE = (
    "__import__('os').system('touch TARGET')", "open('TARGET','w').write('x')",
    r"\text{__import__('os').system('touch TARGET')}", "eval(\"open('TARGET','w')\")",
    "$(touch TARGET)", "`touch TARGET`", "sympify(\"open('TARGET','w')\")",
    r"\write18{touch TARGET}", "().__class__.__base__.__subclasses__()",
    "lambda: open('TARGET','w')", '{"do": "same", "texts": []}\n{"do": "key"}',
)  # fmt: skip
PIECES = (
    r"\frac{", r"\sqrt{", r"\sqrt[3]{", r"\sin(", r"\cos ", r"\tan^{-1}", r"\log_2", r"\ln ", "e^{",
    r"\pi ", r"\theta ", r"\binom{", r"\left(", r"\right)", r"\le ", r"\cdot ", r"\pm ", r"\cup ",
    r"\infty ", r"\text{", r"\{", r"\}", r"\\", r"\begin{pmatrix}", r"\end{pmatrix}", r"\int_0^1 ",
    r"\overline{", r"\sum_{n=1}^{9}", r"\prod ", r"\lim ", "^{", "12", "99", "1000", "0.5", "ab",
    *"{}()[]|^_!=<>,;.+-*/&01237xynkie",
)  # fmt: skip


def box(answer):
    return rf"\boxed{{{answer}}}"


def tower(rng):
    base = [str(rng.randint(2, 99)) for _ in range(rng.randint(3, 12))]
    return rng.choice(["^{", "^(", "^", "**"]).join(base) + "}" * rng.choice([0, len(base) - 1])


def factorial(rng):
    inside = f"{rng.randint(0, 10**9)}{'!' * rng.randint(1, 9)}"
    made = [inside, f"({inside})!", rf"\binom{{{inside}}}{{{inside}}}", f"(({inside})!)!"]
    return rng.choice(made)


def megabyte(rng):
    piece = rng.choice(["9", "{", r"\boxed{", "\\", " ", "x^", "(", "1,", r"\frac{1}", "\x00"])
    return piece * (1_000_000 // len(piece))


def control(rng):
    codes = [*range(32), 127, 0x85, 0x2028, 0xD7FF, 0xFFFE, 0x1F600]
    return "".join(chr(rng.choice(codes)) for _ in range(50))


def code(rng):
    return rng.choice(CODE).replace("TARGET", "hostile-touched")


def nested(rng):
    pairs = [("(", ")"), (r"\sqrt{", "}"), (r"\frac{1}{", "}"), ("|", "|"), (r"\sin(", ")")]
    opening, closing = rng.choice(pairs)
    depth = rng.randint(5, 150)
    return opening * depth + "x" + closing * rng.choice([depth, depth, 3])


def long_number(rng):
    digits = "".join(rng.choices("0123456789", k=rng.randint(30, 999)))
    return rng.choice([digits, f"1/{digits}", f"10^{{{digits}}}", f"{digits}e{digits}"])


def repeated(rng):
    return rng.choice([",", "1, ", "x=", r"\pm", r"1\\", "0.", "!", "-"]) * rng.randint(50, 500)


def formula_like(rng):
    return "".join(rng.choices(PIECES, k=rng.randint(1, 12)))


KINDS = (
    (tower, 70), (factorial, 70), (megabyte, 2), (control, 38), (code, 60), (nested, 70),
    (long_number, 50), (repeated, 40), (formula_like, 100),
)  # fmt: skip


def hostile():
    rng = random.Random(0)
    made = [make(rng) for make, n in KINDS for _ in range(n)]
    rng.shuffle(made)
    return made
