#!/usr/bin/env python3
"""Makes up traffic in Mooncake's format that differs from its conversation trace.

documents  long documents, each asked several times at any time, beside short chats: 15,000 tokens a prompt, two thirds of them
           seen before, 4 requests a second (Mooncake's synthetic trace is such)
agents     a few long system prompts that many share, few turns, short answers: 8,400 tokens a prompt, two thirds of them
           seen before, 6.7 requests a second

usage: made-up.py documents|agents [SEED] >FILE
"""
import json
import random
import sys

SEGMENT = 512


class Ids:
    """Hash ids of segments that nobody else has."""

    def __init__(self):
        self.next = 0

    def take(self, count):
        first, self.next = self.next, self.next + max(count, 0)
        return list(range(first, self.next))


def segments(tokens):
    return (tokens + SEGMENT - 1) // SEGMENT


def request(ms, tokens, answer, ids):
    return {"timestamp": int(ms), "input_length": tokens, "output_length": answer, "hash_ids": ids}


def documents(rng, ids, count=4000, per_s=4.1):
    asked = []
    while len(asked) < count * 0.72:
        kind, document = rng.random(), len(asked)
        median, spread = [(2900, 0.1), (17000, 0.18), (30000, 0.4)][(kind > 0.25) + (kind > 0.55)]
        tokens = min(max(1200, int(rng.lognormvariate(0, spread) * median)), 110_000)
        asked += [(document, tokens)] * (int(rng.expovariate(1 / 2.6)) + 1)
    asked += [(None, max(15, int(rng.lognormvariate(4.5, 1.1)))) for _ in range(count - len(asked))]
    rng.shuffle(asked)
    known, ms = {}, 0.0
    for document, tokens in asked:
        ms += rng.expovariate(per_s) * 1000
        if document is None:
            yield request(ms, tokens, max(5, int(rng.lognormvariate(5.5, 0.7))), ids.take(segments(tokens)))
            continue
        held = known.setdefault(document, ids.take(tokens // SEGMENT) if document not in known else None)
        prompt = len(held) * SEGMENT + rng.randint(20, 1000)
        answer = max(2, int(rng.expovariate(1 / rng.choice([5, 30, 150]))))
        yield request(ms, prompt, answer, held + ids.take(segments(prompt) - len(held)))


def agents(rng, ids, count=23_600, seconds=3540, kinds=80):
    systems = [ids.take(min(max(2, int(rng.lognormvariate(2.0, 0.5))), 40)) for _ in range(kinds)]
    weights = [1 / (rank + 1) ** 0.9 for rank in range(kinds)]
    made = []
    while len(made) < count:
        ms, history = rng.random() * seconds * 1000, rng.choices(systems, weights)[0]
        tokens = len(history) * SEGMENT
        turns = 1 if rng.random() < 0.85 else min(12, int(rng.expovariate(1 / 1.5)) + 2)
        for _ in range(turns):
            tokens += min(max(40, int(rng.lognormvariate(7.1, 1.3))), 60_000)
            answer = min(max(2, int(rng.lognormvariate(4.5, 1.1))), 2000)
            prompt = history + ids.take(segments(tokens) - len(history))
            made.append(request(ms, tokens, answer, prompt))
            history, tokens = prompt[: tokens // SEGMENT], tokens + answer
            ms += answer * 25 + rng.expovariate(1 / 12_000)
            if tokens > 115_000:
                break
    return sorted((one for one in made if one["timestamp"] < seconds * 1000), key=lambda one: one["timestamp"])


def main():
    kinds = {"documents": documents, "agents": agents}
    if len(sys.argv) < 2 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    for one in kinds[sys.argv[1]](rng, Ids()):
        print(json.dumps(one))


main()
