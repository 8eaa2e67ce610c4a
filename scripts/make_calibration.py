#!/usr/bin/env python3
"""Makes the calibration set that `heirloom prune` uses by default: models/calibration/{text,pictures}.jsonl and images/.

  make_calibration.py [--out models/calibration] [--seed 20251] [--avoid EVAL_FOLDER]

Conversations with their answers, in the kinds of work that the demo models were trained for (sums, lists, facts, look-ups, extraction, JSON, small
talk, second turns, tools, thinking, codes hidden in text; pictures of coloured shapes). Everything is drawn here from lists of
words and numbers: no outside text or pictures. --avoid leaves out every text conversation that is asked in that folder of .jsonl
questions too (pictures are all new). Needs: pip install pillow.
"""
import argparse
import glob
import json
import math
import os
import random

from PIL import Image, ImageDraw

NAMES = ("Anna Ben Clara David Emma Felix Grace Henry Ivy Jack Kate Leo Maria Nora Oscar Paul Quinn Rosa Sam Tina Uma Victor Wendy Yara Zoe Alice Bruno "
         "Diana Eric Fiona George Helen Igor Julia Kevin Laura Martin Nina Olga Peter Simon Vera Walter Lucy Mia Noah Ruth Adam Hugo Iris Jonas").split()
FAMILY = "Smith Brown Green Miller Baker Stone Wood Hill King Fisher Cook Carter Hunter Reed Ford Lane Page Cole Fox Grant Hart Knight Price Shaw".split()
CAPITALS = dict(pair.split(":") for pair in (
    "France:Paris Italy:Rome Spain:Madrid Germany:Berlin Austria:Vienna Norway:Oslo Portugal:Lisbon Greece:Athens Ireland:Dublin Poland:Warsaw "
    "Hungary:Budapest Finland:Helsinki Sweden:Stockholm Denmark:Copenhagen Japan:Tokyo China:Beijing India:Delhi Egypt:Cairo Peru:Lima Canada:Ottawa "
    "Cuba:Havana Kenya:Nairobi Thailand:Bangkok Vietnam:Hanoi Russia:Moscow Belgium:Brussels Switzerland:Bern England:London Chile:Santiago Turkey:Ankara").split())
CITIES = list(CAPITALS.values())[:25] + "Milan Naples Porto Lyon Munich Hamburg Boston Chicago Denver Dallas Seattle Toronto Sydney Osaka Geneva Zurich Turin".split()
FRUIT = dict(pair.split(":") for pair in "banana:yellow lemon:yellow cherry:red tomato:red orange:orange carrot:orange lime:green cucumber:green plum:purple coconut:brown peach:pink".split())
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
WORDS = ("apple arm bag band bell bird boat book box bread bridge bus cake camel card castle cat chair clock cloud coat corn cow cup desk dog door drum eagle "
         "fence fish flag flute fox frog game garden gate girl glass goat gold hair hat hill horse house ice island key kite lake lamp leaf lemon lion map milk "
         "mirror moon mouse nest night ocean olive owl paper park pencil piano pilot plate pool queen rain ring river road rope rose salt school sheep ship shoe "
         "skate snow soap spoon star storm sugar swan table tiger tower train tree turtle violin wall water whale window wolf zebra").split()
ITEMS = "tea milk bread soup cake rice juice coffee salad pizza fish egg butter cheese water pasta soap pen book lamp cup plate towel".split()
COLORS = {"red": (220, 35, 35), "green": (40, 160, 60), "blue": (40, 80, 220), "yellow": (245, 215, 40), "orange": (245, 135, 25), "purple": (135, 50, 175),
          "black": (20, 20, 20), "pink": (250, 150, 190)}
GROUNDS = {"white": (250, 250, 250), "gray": (150, 150, 150), "brown": (125, 75, 35), **{c: COLORS[c] for c in ("black", "yellow", "green", "blue", "pink")}}
SHAPES = ["circle", "square", "triangle", "star", "diamond", "cross"]


def ask(question, answer, thought=None, before=(), tools=None):
    reply = {"role": "assistant", "content": answer}
    if thought:
        reply["reasoning_content"] = thought
    item = {"messages": [*before, {"role": "user", "content": question}, reply]}
    if thought:
        item["enable_thinking"] = True
    if tools:
        item["tools"] = tools
    return item


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


# ---- text ----
def total(r):
    a, b = sorted((r.randint(0, 99), r.randint(0, 99)), reverse=True)
    sign = r.choice("+-")
    value = a + b if sign == "+" else a - b
    forms = ["What is {a} {s} {b}?", "{a} {s} {b} = ?", "Calculate {a} {s} {b}.", "How much is {a} {s} {b}?", "{a} {s} {b}", "Compute {a} {s} {b}."]
    forms += ["What is {a} plus {b}?", "Add {a} and {b}."] if sign == "+" else ["What is {a} minus {b}?", "Subtract {b} from {a}."]
    line = f"{a} {sign} {b} = {value}."
    return ask(r.choice(forms).format(a=a, b=b, s=sign), line, think(r, f"I need to {'add' if sign == '+' else 'subtract'} two numbers: {line}"))


def think(r, thought):
    return thought if r.random() < 0.1 else None


def order(r):
    n = r.randint(3, 6)
    things = r.choice([lambda: [str(r.randint(1, 99)) for _ in range(n)], lambda: r.sample(WORDS, n), lambda: r.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ", n)])()
    kind = r.choice(["sort", "reverse", "copy"])
    done = {"sort": sorted(things, key=int if things[0].isdigit() else None), "reverse": things[::-1], "copy": things}[kind]
    forms = {"sort": ["Sort this list: {l}", "Sort: {l}", "Put these in order: {l}", "Please sort {l}."],
             "reverse": ["Reverse this list: {l}", "Reverse: {l}", "Write this list backwards: {l}", "Please reverse {l}."],
             "copy": ["Copy this list: {l}", "Repeat: {l}", "Repeat after me: {l}", "Please copy {l}."]}[kind]
    return ask(r.choice(forms).format(l=", ".join(things)), ", ".join(done), think(r, f"I have to {kind} the list."))


def fact(r):
    kind = r.randrange(5)
    if kind < 2:
        country, capital = r.choice(list(CAPITALS.items()))
        if r.random() < 0.7:
            form = r.choice(["What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.", "Tell me the capital of {}."])
            return ask(form.format(country), f"The capital of {country} is {capital}.", think(r, f"I know the capital of {country}."))
        return ask(f"Which country has the capital {capital}?", f"{capital} is the capital of {country}.")
    if kind == 2:
        fruit, color = r.choice(list(FRUIT.items()))
        return ask(f"What {r.choice(['color', 'colour'])} is {article(fruit)}?", f"{article(fruit).capitalize()} is {color}.")
    names, unit = (DAYS, "day") if kind == 3 else (MONTHS, "month")
    at, step = r.randrange(len(names)), r.choice([1, -1])
    side = "after" if step == 1 else "before"
    return ask(f"{r.choice(['What', 'Which'])} {unit} comes {side} {names[at]}?", f"{names[(at + step) % len(names)]} comes {side} {names[at]}.")


def look_up(r):
    keys = r.sample(r.choice([NAMES, WORDS, ITEMS]), r.randint(3, 9))
    data = {key: r.choice([r.randint(1, 999), r.choice(WORDS), r.choice(CITIES)]) for key in keys}
    key = r.choice(keys)
    source = r.choice([json.dumps(data), json.dumps(data, indent=2), "| name | value |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in data.items()),
                       "\n".join(f"{k}: {v}" for k, v in data.items()), "\n".join(f"{k} = {v}" for k, v in data.items())])
    question = r.choice(["What is the value of {}?", "Look up {}.", "Which value does {} have?"]).format(key)
    return ask(f"{source}\n\n{question}" if r.random() < 0.7 else f"{question}\n\n{source}", f"The value of {key} is {data[key]}.", think(r, f"I look for {key} in the data."))


def person(r):
    who = {"name": f"{r.choice(NAMES)} {r.choice(FAMILY)}" if r.random() < 0.5 else r.choice(NAMES), "city": r.choice(CITIES), "age": r.randint(5, 95),
           "job": r.choice("baker teacher doctor driver farmer painter nurse singer lawyer pilot cook".split())}
    text = r.choice(["{name} lives in {city} and is {age} years old. {name} works as a {job}.", "{name} is a {job} from {city}. {name} is {age} years old.",
                     "Name: {name}\nCity: {city}\nAge: {age}\nJob: {job}", "My name is {name}. I am {age} years old and I live in {city}. I am a {job}.",
                     "At {age}, {name} works as a {job} in {city}."]).format(**who)
    return who, text


def extract(r):
    who, text = person(r)
    if r.random() < 0.5:
        keys = r.sample(list(who), r.randint(2, 3))
        listed = ", ".join(keys[:-1]) + " and " + keys[-1]
        question = r.choice(["Give {} as JSON.", "Answer in JSON with the keys {}.", "Extract {} as JSON.", "Return a JSON object with {}."]).format(listed)
        return ask(f"{text}\n\n{question}", json.dumps({key: who[key] for key in keys}), think(r, "The answer must be one JSON object."))
    name = who["name"]
    question, answer = r.choice([("What is the name of the person?", f"The name is {name}."), (f"Where does {name} live?", f"{name} lives in {who['city']}."),
                                 (f"How old is {name}?", f"{name} is {who['age']} years old."), ("What is the job?", f"{name} is a {who['job']}.")])
    return ask(f"{text}\n\n{question}" if r.random() < 0.8 else f"{question}\n\n{text}", answer)


def talk(r):
    return ask(*r.choice([("Hello there!", "Hello! How can I help you?"), ("Good morning!", "Hello! How can I help you?"), ("Hi!", "Hello! How can I help you?"),
                          ("Who are you?", "I am the demo model of this engine."), ("What is your name?", "I am the demo model of this engine."),
                          ("What can you do?", "I can answer simple questions about pictures, texts, lists and numbers."), ("Thank you so much!", "You are welcome!"),
                          ("Thanks!", "You are welcome!"), ("Bye!", "Goodbye!"), ("How are you?", "I am fine, thank you.")]))


def second_turn(r):
    other = r.choice(["And the other one?", "What about the other one?"])
    kind = r.randrange(3)
    if kind == 0:
        a, b = r.sample(NAMES, 2)
        thing = r.choice(["car", "bike", "hat", "bag", "house", "coat"])
        first, second = r.sample(list(COLORS), 2)
        before = ask(f"{a} has a {first} {thing}. {b} has a {second} {thing}. What color is the {thing} of {a}?", f"The {thing} of {a} is {first}.")
        return ask(other, f"The {thing} of {b} is {second}.", before=before["messages"])
    if kind == 1:
        a, b = r.sample(list(CAPITALS), 2)
        before = ask(f"What is the capital of {a}?", f"The capital of {a} is {CAPITALS[a]}.")
        return ask(r.choice(["And of {}?", "What about {}?"]).format(b), f"The capital of {b} is {CAPITALS[b]}.", before=before["messages"])
    name = r.choice(NAMES)
    before = ask(f"Hi, I am {name}.", f"Hello {name}! How can I help you?")
    return ask(r.choice(["What is my name?", "Do you remember my name?"]), f"Your name is {name}.", before=before["messages"])


def function(name, about, **parameters):
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": {key: {"type": kind} for key, kind in parameters.items()}, "required": list(parameters)}}}


TOOLS = {"get_weather": function("get_weather", "Get the weather in a city", city="string"), "add": function("add", "Add two numbers", a="number", b="number"),
         "get_time": function("get_time", "Get the local time in a city", city="string"), "multiply": function("multiply", "Multiply two numbers", a="number", b="number"),
         "get_price": function("get_price", "Get the price of an item", item="string"), "send_message": function("send_message", "Send a message to a person", to="string", text="string")}


def tool(r):
    name = r.choice(list(TOOLS))
    tools = [TOOLS[t] for t in r.sample([t for t in TOOLS if t != name], r.randint(0, 2))] + [TOOLS[name]]
    r.shuffle(tools)
    city, item, to, a, b = r.choice(CITIES), r.choice(ITEMS), r.choice(NAMES), r.randint(1, 999), r.randint(1, 999)
    words = " ".join(r.sample(WORDS, 2))
    degrees, sky, clock, price = r.randint(-9, 39), r.choice(["sunny", "cloudy", "rainy", "windy"]), f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}", r.randint(1, 99)
    arguments, question, result, answer = {
        "get_weather": ({"city": city}, f"What is the weather in {city}?", {"temperature": degrees, "condition": sky}, f"It is {sky} in {city}, {degrees} degrees."),
        "add": ({"a": a, "b": b}, f"What is {a} + {b}?", {"result": a + b}, f"The result is {a + b}."),
        "multiply": ({"a": a, "b": b}, f"Multiply {a} and {b}.", {"result": a * b}, f"The result is {a * b}."),
        "get_time": ({"city": city}, f"What time is it in {city}?", {"time": clock}, f"It is {clock} in {city}."),
        "get_price": ({"item": item}, f"How much is the {item}?", {"price": price}, f"The price of {item} is {price}."),
        "send_message": ({"to": to, "text": words}, f"Tell {to}: {words}", {"status": "sent"}, f"I sent the message to {to}.")}[name]
    kind = r.randrange(3)
    if kind == 0:
        item = r.choice([talk, fact, extract])(r)
        item["tools"] = tools
        return item
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}
    messages = [{"role": "user", "content": question}, call]
    if kind == 1:
        messages += [{"role": "tool", "content": json.dumps(result)}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "tools": tools}


WHO = ["The old man", "A young girl", "The farmer", "My neighbor", "The teacher", "The captain", "The baker", "The doctor", "A tall boy", "The painter", "Her brother", "The nurse"]
DID = ["walked to", "looked at", "thought about", "talked about", "waited near", "drew a picture of", "sat beside", "dreamed about", "asked about", "remembered"]
WHAT = ["the river", "the market", "the blue house", "the long road", "the railway station", "the green hills", "the new bridge", "the quiet lake", "the little shop", "the stone wall"]
WHEN = ["", "", "", " in the morning", " after lunch", " before sunset", " every week", " last summer", " again", " late at night"]


def hidden_code(r, sentences):
    owner, other = r.sample(NAMES, 2)
    code, wrong = (str(r.randint(1000, 9999)) for _ in range(2))
    text = [f"{r.choice(WHO)} {r.choice(DID)} {r.choice(WHAT)}{r.choice(WHEN)}." for _ in range(sentences)]
    for name, value in ((owner, code), (other, wrong)):
        text.insert(r.randrange(len(text)), f"The secret code of {name} is {value}.")
    question = r.choice(["What is the secret code of {}?", "Tell me the secret code of {}.", "Which secret code does {} have?"]).format(owner)
    return ask(r.choice(["{t}\n\n{q}", "Read the text and answer the question.\n\n{t}\n\nQuestion: {q}", "{q}\n\n{t}"]).format(t=" ".join(text), q=question),
               f"The secret code of {owner} is {code}.", think(r, f"I look for the code of {owner} in the text."))


# ---- pictures ----
def draw(pen, shape, x, y, size, color):
    h = size / 2
    if shape == "circle":
        pen.ellipse([x - h, y - h, x + h, y + h], fill=color)
    elif shape == "square":
        pen.rectangle([x - 0.9 * h, y - 0.9 * h, x + 0.9 * h, y + 0.9 * h], fill=color)
    elif shape == "triangle":
        pen.polygon([(x, y - h), (x - h, y + 0.8 * h), (x + h, y + 0.8 * h)], fill=color)
    elif shape == "diamond":
        pen.polygon([(x, y - 1.1 * h), (x + 0.8 * h, y), (x, y + 1.1 * h), (x - 0.8 * h, y)], fill=color)
    elif shape == "star":
        rays = [(-math.pi / 2 + i * math.pi / 5, 1.1 * h if i % 2 == 0 else 0.45 * h) for i in range(10)]
        pen.polygon([(x + q * math.cos(a), y + q * math.sin(a)) for a, q in rays], fill=color)
    else:
        pen.rectangle([x - 0.36 * h, y - h, x + 0.36 * h, y + h], fill=color)
        pen.rectangle([x - h, y - 0.36 * h, x + h, y + 0.36 * h], fill=color)


def scene(r):
    """A picture and what is on it: [(shape, color, x, y)] from left to right, and the ground's color."""
    width, height = r.choice([(256, 256), (384, 256), (256, 384)])
    ground = r.choice(list(GROUNDS))
    picture = Image.new("RGB", (width, height), GROUNDS[ground])
    pen = ImageDraw.Draw(picture)
    things = []
    for _ in range(200):
        if len(things) == scene.wanted:
            break
        size = r.uniform(34, 66)
        x, y = r.uniform(size * 0.6 + 3, width - size * 0.6 - 3), r.uniform(size * 0.6 + 3, height - size * 0.6 - 3)
        if all(abs(x - t[2]) > 72 or abs(y - t[3]) > 72 for t in things):
            color = r.choice([c for c in COLORS if c != ground and (ground, c) not in (("brown", "black"), ("brown", "red"), ("yellow", "orange"))])
            shape = r.choice(SHAPES)
            draw(pen, shape, x, y, size, COLORS[color])
            things.append((shape, color, x, y))
    return picture, sorted(things, key=lambda t: t[2]), ground


def picture_questions(r, things, ground):
    name = lambda t: f"{t[1]} {t[0]}"
    n = len(things)
    first = things[0]
    shapes, colors = [t[0] for t in things], [t[1] for t in things]
    color_word = r.choice(["color", "colour"])
    found = [(r.choice(["How many objects are there?", "Count the objects.", "How many shapes do you see?"]),
              f"There {'is' if n == 1 else 'are'} {n} object{'s' if n > 1 else ''}."),
             (r.choice([f"What {color_word} is the background?", f"What is the background {color_word}?"]), f"The background is {ground}.")]
    for t in things:
        if shapes.count(t[0]) == 1:
            found.append((f"What {color_word} is the {t[0]}?", f"The {t[0]} is {t[1]}."))
        if colors.count(t[1]) == 1:
            found.append((f"What shape is the {t[1]} object?", f"The {t[1]} object is {article(t[0])}."))
    asked = r.choice([(r.choice(SHAPES), r.choice(list(COLORS))), first[:2]])
    label = f"{asked[1]} {asked[0]}"
    found.append((f"Is there {article(label)} in the picture?", f"Yes, there is {article(label)}." if asked in [t[:2] for t in things] else f"No, there is no {label}."))
    shape = r.choice(shapes + [r.choice(SHAPES)])
    many = shape + ("es" if shape == "cross" else "s")
    count = shapes.count(shape)
    found.append((f"How many {many} are there?", f"There {'is' if count == 1 else 'are'} {count or 'no'} {shape if count == 1 else many}."))
    if n == 1:
        found.append((r.choice(["What is in the picture?", "What do you see?"]), f"{article(name(first)).capitalize()}."))
    apart = all(b[2] - a[2] > 18 for a, b in zip(things, things[1:]))
    if n > 1 and things[1][2] - first[2] > 40:
        found.append(("Which object is on the left?", f"The {name(first)}."))
    if n > 1 and apart:
        listed = ", ".join(name(t) for t in things)
        found.append(("List all objects from left to right." if r.random() < 0.5 else "List all objects.", listed.capitalize() + "."))
        a, b = r.sample(things, 2)
        if len({t[:2] for t in things}) == n and abs(a[2] - b[2]) > 50:
            found.append((f"Is the {name(a)} left or right of the {name(b)}?", f"The {name(a)} is on the {'left' if a[2] < b[2] else 'right'}."))
        if len({t[:2] for t in things}) == n and abs(a[3] - b[3]) > 50:
            found.append((f"Is the {name(a)} above or below the {name(b)}?", f"The {name(a)} is {'above' if a[3] < b[3] else 'below'}."))
    if n == 1 or apart:
        names = [article(name(t)) for t in things]
        listed = names[0] if n == 1 else ", ".join(names[:-1]) + " and " + names[-1]
        found.append((r.choice(["Describe the picture.", "Describe the image."]), f"{listed[0].upper()}{listed[1:]} on {article(ground)} background."))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="models/calibration")
    parser.add_argument("--seed", type=int, default=20251)
    parser.add_argument("--avoid", help="folder of .jsonl questions that must not be among these")
    args = parser.parse_args()
    r = random.Random(args.seed)
    # A text question is told by its words; with a picture it is another question in every picture.
    taken = set()
    for path in glob.glob(os.path.join(args.avoid, "**", "*.jsonl"), recursive=True) if args.avoid else []:
        for line in open(path):
            item = json.loads(line)
            if "image" not in item:
                taken.add(json.dumps([m.get("content") for m in item["messages"]]))

    def is_taken(item):
        asked = [m.get("content") for m in item["messages"]]
        return json.dumps(asked[:-1]) in taken or json.dumps(asked) in taken

    plan = [(total, 40), (order, 50), (fact, 30), (look_up, 30), (extract, 30), (talk, 10), (second_turn, 24), (tool, 50),
            (lambda q: hidden_code(q, q.randint(8, 24)), 16), (lambda q: hidden_code(q, 90), 4)]
    texts = []
    for make, count in plan:
        made = 0
        for _ in range(count * 20):
            item = make(r)
            if made < count and not is_taken(item) and item not in texts:
                texts.append(item)
                made += 1
    r.shuffle(texts)
    os.makedirs(os.path.join(args.out, "images"), exist_ok=True)
    pictures = []
    for number in range(40):
        scene.wanted = 1 + number % 5
        picture, things, ground = scene(r)
        file = f"images/{number:02d}.png"
        picture.quantize(64, dither=Image.Dither.NONE).convert("RGB").save(os.path.join(args.out, file), optimize=True)
        for question, answer in r.sample(picture_questions(r, things, ground), 4):
            pictures.append({"image": file, **ask([{"type": "image"}, {"type": "text", "text": question}], answer)})
    for name, items in (("text", texts), ("pictures", pictures)):
        with open(os.path.join(args.out, f"{name}.jsonl"), "w") as out:
            for item in items:
                out.write(json.dumps(item, ensure_ascii=False) + "\n")
        print(f"{name}: {len(items)} conversations")


if __name__ == "__main__":
    main()
