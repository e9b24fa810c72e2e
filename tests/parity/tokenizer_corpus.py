"""Text for the tokenizer parity test: a mixed corpus, from a seed."""

import random
import unicodedata

WORDS = (
    "the a of and to in is that it was for on are as with they be at one have this from or had by "
    "word but what some we can out other were all there when up use your how said an each she which "
    "their time will way about many then them write would like so these her long make thing see him "
    "two has look more day could go come did number sound no most people my over know water than call "
    "first who may down side been now find Straße naïve café über façade coöperate Ångström İstanbul"
).split()
CODE = (
    "def f(x):\n    return x**2  # square\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}",
    "std::vector<std::string> v{\"a\", 'b'};", "SELECT * FROM t WHERE id='7' -- x\r\n",
    "if err != nil { return fmt.Errorf(\"%w\", err) }", "<div class=\"a-b\">&nbsp;</div>",
    "x = {'k': [1, 2.5e-3, None]}\n\n\n", "#include <stdio.h>\\n", "$ ls -la | grep '^d' && echo ok",
)
SCRIPTS = (
    (0x4E00, 0x9FFF), (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0x0621, 0x064A),
    (0x064B, 0x065F), (0x05D0, 0x05EA), (0x0904, 0x0939), (0x093E, 0x094D), (0x0E01, 0x0E3A),
    (0x0400, 0x04FF), (0x0370, 0x03FF), (0x0300, 0x036F), (0x1F300, 0x1F64F), (0x2190, 0x22FF),
    (0x1D400, 0x1D7FF), (0x0660, 0x0669), (0x2150, 0x218B), (0x00A0, 0x00FF), (0xFF01, 0xFF5E),
)
EMOJI = ("👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽", "❤\ufe0f", "🇩🇪🇯🇵", "🤷🏿\u200d♀\ufe0f", "1\ufe0f\u20e3")
SPACES = (" ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", " \n", "\u00a0", "\u3000", "\u2009", "\u180e",
          "\u200b", "\u2028", "\u0085", "\x0b", "\x0c", " " * 17, "\t" * 9, "\n" * 12, " \t \n ")
CONTRACTIONS = ("'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'M", "'ll", "'Ll", "'d", "'x", "'\u017f", "’s", "''s")
ODD = ("e\u0301", "A\u030a", "\u1112\u1161\u11ab", "q\u0307\u0323", "\u0344", "\u0f73\u0f71", "ﬁ", "Å", "①", "\ufeff",
       "\ufffd", "\u2581", "▁x", "Ġ", "Ċ", "<0x41>", "\U0001f1e6", "\U000e0041", "\U0010ffff")


def _assigned(rng, low, high):
    while True:
        c = chr(rng.randint(low, high))
        # Characters newer than the libraries' tables have no agreed class or decomposition yet.
        recent = unicodedata.ucd_3_2_0.category(c) == "Cn" and unicodedata.decomposition(c)
        if unicodedata.category(c) not in ("Cn", "Cs") and not recent:
            return c


def _piece(rng, marks):
    kind = rng.randrange(13)
    if kind <= 2:
        return rng.choice(WORDS)
    if kind == 3:
        return rng.choice(WORDS).capitalize() + rng.choice(CONTRACTIONS)
    if kind == 4:
        return str(rng.randrange(10 ** rng.randint(1, 14))) + rng.choice(("", ".5", ",000", "th", "€"))
    if kind == 5:
        return rng.choice(CODE)
    if kind == 6:
        low, high = rng.choice(SCRIPTS)
        return "".join(_assigned(rng, low, high) for _ in range(rng.randint(1, 8)))
    if kind == 7:
        return rng.choice(EMOJI)
    if kind == 8:
        return rng.choice(SPACES) * rng.randint(1, 3)
    if kind == 9:
        return "".join(rng.choice("!?.,;:-_/\\()[]{}<>|@#$%^&*+=~`\"'") for _ in range(rng.randint(1, 6)))
    if kind == 10:
        return rng.choice(ODD)
    if kind == 11:
        return rng.choice(marks) if rng.random() < 0.5 else _assigned(rng, 0x20, 0x1FFFF)
    return "".join(chr(rng.randrange(0x20)) for _ in range(rng.randint(1, 3)))


def make(seed, lines, marks):
    """`lines` texts; `marks` are added tokens that are strewn in. The first ones are fixed corner cases."""
    rng = random.Random(seed)
    texts = ["", " ", "  ", "\n", "a", " a", "a ", "\0", "a" * 3000, " " * 3000, "ab " * 700, "\u0301" * 300]
    for mark in marks:
        texts += [mark, " " + mark + " ", "x" + mark + "y", mark + mark, "  " + mark + "\n\t b", mark[:-1]]
    while len(texts) < lines:
        glue = rng.choice(("", " ", " "))
        texts.append(glue.join(_piece(rng, marks) for _ in range(rng.randint(1, 12))))
    return texts
