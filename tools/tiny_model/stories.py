"""Simple children's stories from a probabilistic grammar: the training text of the tiny model.

A story is opening, plot, ending (grammar.txt). A plot is a list of beats in which each event is the
cause of the next; a beat is a list of variants that mean the same. All sentences of a story share
the slots of one scene, so that names, pronouns, things and places stay consistent.
"""

import random
from pathlib import Path

from world import scene


def _read_grammar() -> tuple[dict[str, list[list[str]]], dict[str, str]]:
    """(section -> beats -> variants, section -> what a person may ask for) of grammar.txt."""
    beats: dict[str, list[list[str]]] = {}
    subjects: dict[str, str] = {}
    for block in Path(__file__).with_name("grammar.txt").read_text().split("\n== ")[1:]:
        head, body = block.split("\n", 1)
        name, _, subject = head.partition(": ")
        beats[name] = [beat.splitlines() for beat in body.strip().split("\n\n")]
        subjects[name] = subject
    return beats, subjects


BEATS, SUBJECTS = _read_grammar()
(OPENINGS,), (ENDINGS,) = BEATS.pop("openings"), BEATS.pop("endings")

CHAT_REQUESTS = [
    "Tell me a story about {subject}.",
    "Can you tell me a story about {subject}?",
    "Please tell me a story about {subject}.",
    "Write a short story about {subject}.",
    "I want to hear a story about {subject}.",
    "Story about {subject}, please.",
    "Once more, a story about {subject}!",
]
SMALL_TALK = [
    (
        ["Hello!", "Hi!", "Hello, how are you?", "Hi there."],
        [
            "Hello! I am happy to see you. Do you want to hear a story?",
            "Hi! I know many stories. What should my story be about?",
        ],
    ),
    (
        ["Who are you?", "What are you?", "What is your name?"],
        [
            "I am a very small language model. I tell short stories.",
            "I am a tiny storyteller. Ask me for a story about a fox!",
        ],
    ),
    (
        ["What can you do?", "How can you help me?"],
        ["I can tell you short stories about animals and friends."],
    ),
    (
        ["Thank you!", "Thanks, that was nice.", "That was a good story."],
        ["You are welcome! Do you want to hear another story?", "I am glad you liked it!"],
    ),
    (
        ["Goodbye!", "Good night.", "Bye!"],
        ["Goodbye! Sleep well and dream of good things.", "Good night! Come back soon."],
    ),
]


def story(rng: random.Random) -> tuple[str, str]:
    """(subject that a person might ask for, story)."""
    slots, _ = scene(rng)
    slots |= {
        "elder_he": "he" if slots["elder"] in ("grandfather", "father", "uncle") else "she",
        "weather_thing": rng.choice(["shine in the sun", "move in the wind", "hang in a tree"]),
        "catch": rng.choice(["a bush", "the branch of a tree", "the tall grass", "a fence"]),
        "an_item_cover": rng.choice(["dry leaves", "a warm blanket", "soft moss", "some straw"]),
        "daypart": rng.choice(["day", "morning", "afternoon"]),
    }
    plot = rng.choice(list(BEATS))
    subject, beats = SUBJECTS[plot], BEATS[plot]
    lines = [rng.choice(OPENINGS)] + [rng.choice(beat) for beat in beats] + [rng.choice(ENDINGS)]
    sentences = [line.format_map(slots) for line in lines]
    cut = rng.choice([len(sentences), 3, 4])  # some stories have paragraphs
    text = " ".join(sentences[:cut]) + (
        "\n\n" + " ".join(sentences[cut:]) if cut < len(sentences) else ""
    )
    wish = rng.choice(
        [
            "{h_akind}",
            "{h_a}",
            "{h_akind} named {h}",
            "{h_akind} and {f_akind}",
            "{h} and {f}",
            subject,
            "{h_akind} and " + subject,
        ]
    )
    return wish.format_map(slots), text


def document(rng: random.Random) -> str:
    """One training document: a plain story, or a chat of one to three turns in ChatML."""
    kind = rng.random()
    if kind < 0.5:
        return story(rng)[1]
    turns = []
    if rng.random() < 0.2:
        turns.append(
            (
                "system",
                rng.choice(
                    ["You are a helpful assistant.", "You tell short stories for children."]
                ),
            )
        )
    for _ in range(2 if kind > 0.9 else 1):
        if rng.random() < 0.12:
            asks, answers = rng.choice(SMALL_TALK)
            turns += [("user", rng.choice(asks)), ("assistant", rng.choice(answers))]
            continue
        subject, text = story(rng)
        turns += [("user", rng.choice(CHAT_REQUESTS).format(subject=subject)), ("assistant", text)]
    return "\n".join(f"<|im_start|>{role}\n{content}<|im_end|>" for role, content in turns) + "\n"


def corpus(count: int, seed: int) -> list[str]:
    """`count` documents; the same for the same seed."""
    rng = random.Random(seed)
    return [document(rng) for _ in range(count)]


if __name__ == "__main__":
    print("\n----\n".join(corpus(12, 1)))
