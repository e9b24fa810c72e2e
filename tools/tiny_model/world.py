"""Who and what the stories are about: the terminals of the grammar in stories.py."""

import random
from dataclasses import dataclass

# (kind, where it lives); every animal may be a hero, a friend or a passer-by.
ANIMALS = [
    ("fox", "den"),
    ("rabbit", "burrow"),
    ("bear", "cave"),
    ("mouse", "hole in the wall"),
    ("cat", "cottage"),
    ("dog", "farmhouse"),
    ("duck", "nest by the pond"),
    ("hedgehog", "pile of leaves"),
    ("squirrel", "hollow tree"),
    ("owl", "old oak tree"),
    ("frog", "house of reeds"),
    ("turtle", "sandy bank"),
    ("badger", "sett"),
    ("deer", "quiet clearing"),
    ("goat", "barn"),
    ("pig", "sty"),
    ("lamb", "meadow"),
    ("hen", "coop"),
    ("mole", "tunnel"),
    ("otter", "river bank"),
    ("beaver", "lodge"),
    ("crow", "tall pine"),
    ("pony", "stable"),
    ("panda", "bamboo grove"),
    ("koala", "gum tree"),
    ("penguin", "house of ice"),
    ("elephant", "valley"),
    ("monkey", "fig tree"),
    ("lion", "rocky hill"),
    ("dragon", "mountain cave"),
]
GIRLS = [
    "Mia",
    "Lily",
    "Anna",
    "Rosa",
    "Nora",
    "Ella",
    "Zoe",
    "Ivy",
    "Clara",
    "Hana",
    "Tess",
    "Molly",
    "Daisy",
    "Lucy",
    "Maya",
    "Ruby",
    "Poppy",
    "Wren",
]
BOYS = [
    "Tom",
    "Ben",
    "Max",
    "Sam",
    "Leo",
    "Finn",
    "Oscar",
    "Hugo",
    "Pip",
    "Jack",
    "Milo",
    "Noah",
    "Theo",
    "Toby",
    "Eli",
    "Otto",
    "Rory",
    "Kai",
]
ADJECTIVES = [
    "little",
    "small",
    "young",
    "clever",
    "brave",
    "shy",
    "kind",
    "curious",
    "cheerful",
    "gentle",
    "sleepy",
    "quiet",
    "lively",
    "friendly",
]
COLOURS = [
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "golden",
    "silver",
    "purple",
    "orange",
    "brown",
]
TOYS = [
    "ball",
    "kite",
    "drum",
    "scarf",
    "hat",
    "boat",
    "book",
    "bell",
    "button",
    "cup",
    "basket",
    "key",
    "ribbon",
    "whistle",
    "lantern",
    "blanket",
    "top",
    "shell",
    "feather",
    "mitten",
]
FOODS = [
    "apple",
    "pear",
    "carrot",
    "bun",
    "honey cake",
    "berry pie",
    "piece of cheese",
    "bowl of soup",
    "loaf of bread",
    "plum",
    "pancake",
    "jar of jam",
    "cookie",
    "slice of melon",
]
# (place, what one may hide, sit or search under there)
PLACES = [
    ("the forest", "an old log"),
    ("the garden", "a rose bush"),
    ("the meadow", "a tall thistle"),
    ("the park", "a wooden bench"),
    ("the beach", "a flat rock"),
    ("the farm", "a hay cart"),
    ("the village", "the market table"),
    ("the orchard", "an apple tree"),
    ("the hill", "a pile of stones"),
    ("the valley", "a fallen branch"),
    ("the river bank", "the little bridge"),
    ("the lake", "an upturned boat"),
    ("the schoolyard", "the slide"),
    ("the market square", "the fountain"),
]
WEATHER = ["sunny", "windy", "cool", "warm", "bright", "cloudy", "frosty", "misty"]
TIMES = [
    "morning",
    "afternoon",
    "day",
    "spring morning",
    "summer day",
    "autumn afternoon",
    "winter morning",
]
ELDERS = ["grandmother", "grandfather", "mother", "father", "aunt", "uncle"]
GAMES = ["hide and seek", "catch", "tag", "jump the rope", "pirates", "follow the leader"]
SEEDS = [
    ("sunflower", "tall and yellow"),
    ("pumpkin", "round and orange"),
    ("apple tree", "full of red apples"),
    ("rose", "pink and sweet"),
    ("bean", "long and green"),
    ("strawberry", "red and juicy"),
]


def article(phrase: str) -> str:
    """`phrase` with its indefinite article: "an old log", "a fox"."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


@dataclass
class Character:
    """A named person or animal with the pronouns that fit the name."""

    name: str
    kind: str  # "fox", "girl"
    home: str
    adjective: str
    female: bool

    def slots(self, prefix: str) -> dict[str, str]:
        """Slots: the name as {p}, pronouns {p_he} .. {p_self}, {p_kind}, {p_a}, {p_home}."""
        he, him, his = ("she", "her", "her") if self.female else ("he", "him", "his")
        return {
            prefix: self.name,
            f"{prefix}_he": he,
            f"{prefix}_He": he.capitalize(),
            f"{prefix}_him": him,
            f"{prefix}_his": his,
            f"{prefix}_His": his.capitalize(),
            f"{prefix}_self": him + "self",
            f"{prefix}_kind": self.kind,
            f"{prefix}_a": article(f"{self.adjective} {self.kind}"),
            f"{prefix}_akind": article(self.kind),
            f"{prefix}_home": self.home,
            f"{prefix}_ahome": article(self.home),
        }


def character(rng: random.Random, taken: list[Character]) -> Character:
    """A new character whose name and kind differ from those in `taken`."""
    names = {c.name for c in taken}
    kinds = {c.kind for c in taken}
    female = rng.random() < 0.5
    name = rng.choice([n for n in (GIRLS if female else BOYS) if n not in names])
    if rng.random() < 0.2 and not kinds & {"girl", "boy"}:
        kind, home = (
            ("girl" if female else "boy"),
            rng.choice(["small house", "cottage", "house on the hill"]),
        )
    else:
        kind, home = rng.choice([a for a in ANIMALS if a[0] not in kinds])
    return Character(name, kind, home, rng.choice(ADJECTIVES), female)


def scene(rng: random.Random) -> tuple[dict[str, str], list[Character]]:
    """Slots of one story and its hero, friend and third character."""
    cast: list[Character] = []
    for _ in range(3):
        cast.append(character(rng, cast))
    slots: dict[str, str] = {}
    for prefix, who in zip("hft", cast, strict=True):
        slots |= who.slots(prefix)
    place, spot = rng.choice(PLACES)
    place2, spot2 = rng.choice([p for p in PLACES if p[0] != place])
    toy, colour = rng.choice(TOYS), rng.choice(COLOURS)
    food, food2 = rng.sample(FOODS, 2)
    seed, grown = rng.choice(SEEDS)
    slots |= {
        "place": place,
        "spot": spot,
        "place2": place2,
        "spot2": spot2,
        "toy": toy,
        "item": f"{colour} {toy}",
        "an_item": article(f"{colour} {toy}"),
        "food": food,
        "a_food": article(food),
        "a_food2": article(food2),
        "weather": rng.choice(WEATHER),
        "time": rng.choice(TIMES),
        "elder": rng.choice(ELDERS),
        "game": rng.choice(GAMES),
        "seed": seed,
        "a_seed": article(seed),
        "grown": grown,
    }
    return slots, cast
