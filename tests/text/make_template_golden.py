#!/usr/bin/env python3
"""Writes tests/golden/template/renders.json: small templates of our own and random expressions, rendered by Python's jinja2
the way `transformers` sets it up. Needs transformers >= 5.24 and jinja2.

    python3 tests/text/make_template_golden.py [--random N] [--seed S] OUT
"""
import argparse
import copy
import json
import random
import warnings

from transformers.utils.chat_template_utils import _compile_jinja_template

CONTEXT = {
    "s": "Hello, World", "e": "", "sp": "  pad \n", "u": "héllo wörld ß ĲΣ 你好 😀", "q": "it's \"q\" <b>&\\", "n": 7, "m": -3, "z": 0,
    "f": 2.5, "g": 1e21, "h": -0.0001, "t": True, "x": False, "no": None, "big": 123456789012,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "lm": [1, "a", None, 2.0, True], "le": [], "ll": [[1, 2], [3], []],
    "d": {"a": 1, "b": "two", "c": [1, {"k": None}], "items": 5}, "de": {},
    "ld": [{"n": "x", "v": 3, "in": {"w": 1}}, {"n": "y", "v": 1}, {"n": "Z", "v": 2, "in": {"w": 0}}],
    "multi": "line1\nline2\r\n\nline4", "num": " 42 ", "fl": "3.75e1", "hex": "0x1F", "csv": "a,b,,c",
    "ab": "ab", "lt": "<", "a_b": "a b", "one": 1, "two": 2, "ten": 10,
}

SNIPPETS = r"""
{{ s }}|{{ n }}|{{ f }}|{{ g }}|{{ h }}|{{ t }}|{{ no }}|{{ l }}|{{ d }}|{{ lm }}|{{ q }}|{{ [q] }}|{{ u }}|{{ undef }}
{{ s.upper() }}|{{ s.lower() }}|{{ s.title() }}|{{ u.upper() }}|{{ u.title() }}|{{ u|title }}|{{ u|capitalize }}|{{ "they're o'neil-x (ab) [cd" | title }}
{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ sp|trim }}|{{ 'xyax'|trim('xy') }}
{{ csv.split(',') }}|{{ csv.split(',', 1) }}|{{ csv.rsplit(',', 1) }}|{{ sp.split() }}|{{ ' a  b '.split(None, 1) }}|{{ 'abc'.rsplit('b') }}|{{ ' a b c '.rsplit(None, 1) }}
{{ multi.splitlines() }}|{{ multi.splitlines(True) }}|{{ multi|indent }}|{{ multi|indent(2, true) }}|{{ multi|indent(2, true, true) }}|{{ multi|indent('>>') }}|{{ ''|indent }}|{{ 'a\n'|indent(first=true) }}
{{ s[0] }}{{ s[-1] }}{{ s[1:3] }}{{ s[::-1] }}{{ s[::2] }}{{ s[10:0:-3] }}{{ u[2:5] }}{{ u[::-1] }}|{{ s[99] }}|{{ s[5:2] }}|{{ l[::-1] }}{{ l[-2:] }}{{ l[:-1] }}{{ l[5:] }}{{ (1,2,3)[1:] }}
{{ s.find('o') }}{{ s.find('o', 5) }}{{ s.rfind('o') }}{{ s.find('zz') }}{{ u.find('你') }}{{ s.index('W') }}{{ s.count('l') }}{{ s.count('l', 4) }}{{ u.count('') }}
{{ s.startswith('He') }}{{ s.startswith(('x', 'H')) }}{{ s.endswith('ld') }}{{ s.startswith('lo', 3) }}{{ s.endswith('lo', 0, 5) }}
{{ s.replace('l', 'L') }}{{ s.replace('l', 'L', 1) }}{{ 'ab'.replace('', '-') }}{{ s|replace('o', '0') }}{{ s|replace('o', '0', 1) }}{{ 12|replace(1, 3) }}
{{ ','.join(ls) }}{{ l|join('-') }}{{ ls|join }}{{ ld|join(', ', attribute='n') }}{{ ll|join('|') }}{{ d|join('+') }}{{ 'abc'|join('.') }}
{{ 'a1'.isalnum() }}{{ '12'.isdigit() }}{{ 'ab'.isalpha() }}{{ ''.isalpha() }}{{ ' \t'.isspace() }}{{ 'AB1'.isupper() }}{{ 'ab'.islower() }}{{ 'Ab' is upper }}{{ 'ab' is lower }}
{{ 'pre-x'.removeprefix('pre-') }}{{ 'x.py'.removesuffix('.py') }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'abc'.partition('x') }}
{{ 'ab'.center(7, '*') }}|{{ 'abc'.center(6) }}|{{ 'ab'.ljust(5) }}|{{ 'ab'.rjust(5, '.') }}|{{ '-7'.zfill(4) }}|{{ 'ab'|center(9) }}|
{{ l|length }}{{ s|length }}{{ u|length }}{{ d|count }}{{ undef|length }}{{ l|first }}{{ l|last }}{{ s|first }}{{ le|first }}|{{ le|last }}|{{ d|first }}
{{ l|sort }}{{ ls|sort }}{{ ls|sort(case_sensitive=true) }}{{ l|sort(reverse=true) }}{{ ld|sort(attribute='v')|map(attribute='n')|list }}{{ ld|sort(attribute='n')|map(attribute='n')|join }}
{{ ls|unique|list }}{{ [1, 1.0, 2, True]|unique|list }}{{ l|min }}{{ l|max }}{{ l|sum }}{{ ld|sum(attribute='v') }}{{ ld|max(attribute='v') }}{{ le|min }}
{{ l|reverse|list }}{{ s|reverse }}{{ u|list }}{{ d|list }}{{ d|items|list }}{{ d.items()|list }}{{ d.keys()|list }}{{ d.values()|list }}{{ d|dictsort }}{{ {'b':1,'A':2}|dictsort }}{{ {'b':1,'A':2}|dictsort(true) }}{{ {'b':1,'a':2}|dictsort(by='value', reverse=true) }}
{{ ld|selectattr('v', 'gt', 1)|map(attribute='n')|list }}{{ ld|rejectattr('in')|map(attribute='n')|list }}{{ ld|selectattr('in')|list|length }}{{ ld|map(attribute='in.w', default=9)|list }}{{ lm|select('string')|list }}{{ lm|reject('none')|list }}{{ l|select('odd')|list }}{{ l|select|list }}{{ ls|map('upper')|list }}{{ ls|map('replace', 'a', 'Q')|list }}
{{ no|default('D') }}{{ no|default('D', true) }}{{ undef|default('D') }}{{ undef|d }}{{ e|default('E', boolean=True) }}{{ d.zz|default(1) }}{{ z|default(5) }}{{ z|default(5, true) }}
{{ num|int }}{{ fl|float }}{{ fl|int }}{{ hex|int(base=16) }}{{ 'x'|int }}{{ 'x'|int(9) }}{{ 3.99|int }}{{ '1_000'|int }}{{ 'x'|float }}{{ '1e5'|float }}{{ n|float }}{{ '-12'|int }}{{ no|int(4) }}{{ '7.9'|int }}
{{ 2.567|round }}|{{ 2.567|round(2) }}|{{ 2.5|round }}|{{ 3.5|round }}|{{ 2.567|round(1, 'floor') }}|{{ 2.512|round(1, 'ceil') }}|{{ 1234|round(-2) }}|{{ 7|round }}|{{ m|abs }}|{{ h|abs }}
{{ 7 // 2 }}{{ -7 // 2 }}|{{ 7 % 3 }}{{ -7 % 3 }}{{ 7 % -3 }}|{{ 7 / 2 }}|{{ 6 / 2 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 7.5 // 2 }}|{{ -7.5 % 2 }}|{{ 1 + 2.0 }}|{{ 2 * 3.5 }}|{{ -n }}|{{ +n }}|{{ 1e3 }}|{{ 1_000 }}|{{ 0.1 + 0.2 }}|{{ 1e16 }}|{{ 123456789.123 }}|{{ 1e-5 }}|{{ 100000.0 }}|{{ -0.0 }}
{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 }}{{ t == 1 }}{{ 'a' < 'b' }}{{ [1,2] < [1,3] }}{{ 'a' in 'abc' }}{{ 4 not in l }}{{ 'a' in d }}{{ 3 in l }}{{ not t }}{{ t and 5 }}{{ x or 'o' }}{{ no and 1 }}{{ 1 != 2 }}{{ undef == undef2 }}{{ no == undef }}
{{ 'a' ~ 1 ~ none ~ 2.0 ~ [1] ~ undef }}{{ 'a' * 3 }}{{ [0] * 2 }}{{ 'a' 'b' "c" }}{{ [1] + [2] }}{{ (1,) + (2,) }}{{ (1,) }}{{ () }}{{ 'x' if t }}|{{ 'x' if x }}|{{ 'x' if x else 'y' }}|{{ 1 if x else 2 if x else 3 }}
{{ s is string }}{{ n is number }}{{ t is number }}{{ n is integer }}{{ t is integer }}{{ f is float }}{{ t is boolean }}{{ t is true }}{{ x is false }}{{ 1 is true }}{{ d is mapping }}{{ l is iterable }}{{ s is iterable }}{{ n is iterable }}{{ l is sequence }}{{ d is sequence }}{{ s is sequence }}{{ n is sequence }}{{ no is none }}{{ undef is defined }}{{ undef is none }}{{ d.items is callable }}{{ 4 is even }}{{ 3 is odd }}{{ 9 is divisibleby 3 }}{{ 3 is in l }}{{ 3 is eq 3 }}{{ 3 is gt(2) }}{{ n is not none }}{{ n is sameas n }}{{ undef is sequence }}{{ undef is iterable }}{{ 'x' is in 'xyz' }}{{ 2 is lessthan 3 }}
{{ d.a }}{{ d['b'] }}{{ d.get('a') }}{{ d.get('zz') }}{{ d.get('zz', 3) }}{{ d.c[1].k }}{{ d.c[1]['k'] }}|{{ d.zz }}|{{ d['zz'] }}|{{ l.0 }}{{ ll[0][1] }}|{{ no.foo }}|{{ l.foo }}|{{ l['foo'] }}|{{ d['items'] }}|{{ n.foo }}
{{ d|tojson }}|{{ lm|tojson }}|{{ u|tojson }}|{{ q|tojson }}|{{ d|tojson(indent=2) }}|{{ le|tojson(indent=4) }}|{{ de|tojson }}|{{ u|tojson(ensure_ascii=true) }}|{{ d|tojson(separators=(',', ':')) }}|{{ {'b':1,'a':{'d':1,'c':2}}|tojson(sort_keys=true) }}|{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}|{{ [1e21, 1e-7, 1.0, -0.0, 123456789012345678]|tojson }}|{{ '\x00\x1f\x7f\u2028\n\t'|tojson }}|{{ (1, [2])|tojson(indent=1) }}
{{ s|safe + '<' }}|{{ '<' + s|safe }}|{{ q|e }}|{{ q|escape|safe }}|{{ q|forceescape }}|{{ q|e|e }}|{{ ('<'|safe) ~ '<' }}|{{ q|e|length }}|{{ q|string }}|{{ 5|string ~ 1 }}
{{ '%s-%d-%5.2f-%r-%x-%%' % ('a', 3, 2.345, 'q', 255) }}|{{ '%s' % 5 }}|{{ '%-6s|%6s|%06d|%+d' % ('ab', 'cd', 42, 7) }}|{{ "%s, %s!" | format('Hi', 'you') }}|{{ '%(a)s' % {'a': 1} }}|{{ "%(x)d" | format(x=3) }}|{{ '%.3s' % 'abcdef' }}|{{ '%e|%g' % (12345.678, 0.00001234) }}|{{ '%c%c' % (65, 'b') }}|{{ '%5s%%' % 1 }}
{{ '{} {1} {a}'.replace('{1}', '{}').format(1, 2, a=3) }}|{{ '{0:>5}|{1:<5}|{2:^5}|'.format('a', 'b', 'c') }}|{{ '{:.2f} {:,} {:05d} {:x} {:%}'.format(2.345, 1234567, 42, 255, 0.5) }}|{{ '{{}} {!r}'.format('x') }}|{{ '{0[a]} {1[0]}'.format(d, l) }}|{{ '{:*^9}'.format('mid') }}|{{ '{:+}'.format(3) }}|{{ '{:8.3f}|{:e}'.format(3.14159, 1234.5) }}
{{ range(3)|list }}{{ range(1, 7, 2)|list }}{{ range(3, 0, -1)|list }}{{ range(0)|list }}|{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}{{ dict([('k', 'v')]) }}
{% for i in l %}{{ loop.index }}/{{ loop.length }}:{{ i }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.index0 }}{{ loop.depth }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor %}{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}no{% endfor %}{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}{% for i in range(9) if i is odd %}{{ i }}{{ loop.length }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for c in 'héy' %}[{{ c }}]{% endfor %}{% for i in undef %}x{% endfor %}
{% for i in [1,1,2,2,3] %}{% if loop.changed(i) %}{{ i }}{% endif %}{% endfor %}{% for x in ll recursive %}{{ loop.depth }}{% if x is iterable and x is not string %}[{{ loop(x) }}]{% else %}{{ x }}{% endif %}{% endfor %}
{% set a = 1 %}{% for i in l %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}{% set ns = namespace(c=0, l=[]) %}{% for i in l %}{% set ns.c = ns.c + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.c }}{{ ns.l }}{% if t %}{% set b = 2 %}{% endif %}{{ b }}{{ ns.zz }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t3 = (1, 2) %}{{ t3 }}{% set x %}block {{ n }}{% endset %}{{ x }}{% set y | upper %}up{% endset %}{{ y }}{% set y | replace('u', 'U') | trim %} uu {% endset %}{{ y }}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(b=1, a=0) }}|{{ m() }}|{{ m(1)|upper }}|{{ m.name }}
{% macro v(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, 3, k=4) }}{% macro c() %}<{{ caller('z') }}>{% endmacro %}{% call(p) c() %}body {{ p }}{{ n }}{% endcall %}{% macro r(k) %}{% if k > 0 %}{{ k }}{{ r(k - 1) }}{% endif %}{% endmacro %}{{ r(4) }}
{% macro d1(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ d1(3) }}{{ d1(*[1, 2]) }}{{ d1(**{'a': 5}) }}{% set g = 1 %}{% macro mm() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ mm() }}
{% filter upper %}abc {{ s }}{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}{% raw %}{{ raw }} {% if %}{% endraw %}{# comment #}{% generation %}gen{% set inner = 1 %}{% endgeneration %}{{ inner }}{% print 1 %}
{% if n > 5 and (f < 3 or undef) %}A{% elif t %}B{% else %}C{% endif %}{% if not (a is defined) %}D{% endif %}{% if undef %}E{% endif %}{% if 'x' in 'xyz' and l and d %}F{% endif %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}{% set j = joiner('; ') %}{{ j() }}1{{ j() }}2{{ j() }}
{{ l|batch(2)|list }}{{ l|batch(2, 0)|list }}{{ ld|groupby('v')|list|length }}{{ [{'k':'b','i':1},{'k':'a','i':2},{'k':'B','i':3}]|groupby('k')|map('first')|list }}
{{ 'one two  three'|wordcount }}{{ 'The quick brown fox'|truncate(10) }}|{{ 'The quick brown fox'|truncate(10, true) }}|{{ 'short'|truncate(10) }}|{{ 'The quick brown fox jumps'|truncate(12, false, '…', 0) }}
{{ d|attr('keys') is callable }}{{ d|attr('a') is defined }}{{ 'x'.__class__ }}|{{ d.__len__ is defined }}|{{ 'a\tb\\n\x41\u00e9\101\q\'' }}|{{ "multi
line" }}
  {% if t %}
    indented
  {% endif %}
  text {%- if t %}  kept  {%- endif %}
  {{- n -}}
  {%+ if t %} plus {% endif +%}
end
{%- for i in l -%}
  {{ i }}
{%- endfor -%}
tail   {# note #}
  {#- strip -#}  x
{% for m in ld %}{{ '<|' ~ m.n ~ '|>\n' }}{% if m.in is defined %}{{ m.in.w }}{% endif %}{{ '\n' if not loop.last }}{% endfor %}
{% for i in range(100001) %}{% endfor %}
{{ 1 / 0 }}
{{ no + 1 }}
{{ undef.x }}
{{ undef + 1 }}
{{ 'a' + 1 }}
{{ l.append(4) }}
{{ d.update({}) }}
{{ raise_exception('stop') }}
{{ no|length }}
{{ no|items|list }}
{{ undef|tojson }}
{{ s|nosuch }}
{{ s is nosuch }}
{% for i in n %}{% endfor %}
{{ foo( }}
{% if %}{% endif %}
{% endfor %}
{{ 'a }}
{% set x.y = 1 %}
{% break %}
{{ m1(1, 2) }}
{% macro q1(a) %}{% endmacro %}{{ q1(1, 2) }}
{% macro q2(a) %}{% endmacro %}{{ q2(zz=2) }}
{{ {[1]: 2} }}
{{ 'x' < 1 }}
{{ 5 in 'abc' }}
{{ [1,2](0) }}
{{ s.nosuch() }}
{{ range(3)[1] }}{{ 'abc'[1:]['0'] }}
{{ d.items()[0] }}|{{ d.c.1.k }}|{{ (l|map('string'))|join }}|{{ l|map('string') is iterable }}|{{ l|map('string') is sequence }}|{{ (l|select)|first }}
{% set x = l|map('string') %}{{ x|list }}{{ x|list }}{% for i in ld|map(attribute='v') %}{{ loop.index }}{{ i }}{% endfor %}
{{ 3 is divisibleby 0 }}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% include 'x' %}
{{ loop }}|{{ caller is defined }}
{{ 'a' if n is defined and n is number and n > 3 else 'b' }}{{ n is number is true }}
{{ not n is number }}{{ not 1 == 2 }}{{ -2 ** 2 }}{{ 2 ** 3 ** 2 }}{{ 1 - 2 - 3 }}{{ 2 + 3 * 4 ~ 'x' }}{{ 'x' ~ 2 * 3 }}{{ -l[0] }}{{ -1|abs }}{{ 1.5.real }}
{{ l|length > 2 }}{{ l | length == 3 and s | length > 3 }}{{ (l|length) + 1 }}{{ s|upper|lower|length }}{{ 'a,b'.split(',')|last|upper }}
{{ 'ÀÉ'|lower }}{{ 'àé'|upper }}{{ 'ß'.upper() }}{{ 'ß'|capitalize }}{{ 'ǆ'|upper }}{{ 'ΑΣ'.lower()|length }}{{ 'İ'|length }}
"""


def snippets():
    """One template a line; lines that begin with blanks continue the template before them."""
    out = []
    block = []
    for line in SNIPPETS.strip("\n").split("\n"):
        starts = line.startswith(("{{", "{%")) and not line.startswith(("{%-", "{%+"))
        if starts and not (block and "multi\nline" in "\n".join(block + [line])[-12:]):
            if block:
                out.append("\n".join(block))
            block = [line]
        else:
            block.append(line)
    return out + ["\n".join(block)]


# names only: an expression of constants is folded by the compiler, which forgives errors that rendering does not
STRINGS = ["s", "e", "sp", "u", "q", "multi", "num", "fl", "csv", "ab", "lt", "a_b"]
NUMBERS = ["n", "m", "z", "f", "h", "one", "two", "ten"]
LISTS = ["l", "ls", "lm", "le", "ll", "ld", "d.c", "(n, one)", "[s, two]"]
OTHERS = ["no", "t", "x", "d", "de", "undef", "d.zz"]
TEXT_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "reverse", "string", "int", "float",
                "tojson", "replace('a', 'Z')", "default('dd')", "default('dd', true)", "join('-')", "sort", "unique|list", "map('string')|list",
                "select|list", "abs", "round", "round(1)", "items|list", "dictsort", "indent(2)", "e", "safe", "min", "max", "sum",
                "reject('none')|list", "map('length')|list", "map(attribute='v')|list", "selectattr('v')|list", "tojson(indent=1)", "wordcount", "center(9)"]
TESTS = ["string", "number", "mapping", "iterable", "sequence", "defined", "undefined", "none", "boolean", "integer", "float", "true", "false",
         "even", "odd", "upper", "lower", "eq(1)", "in(l)", "gt(1)", "divisibleby(2)", "callable"]
METHODS = ["strip()", "upper()", "split()", "split('a')", "split(',', 1)", "startswith('a')", "endswith('d')", "find('l')", "replace('l', '')",
           "title()", "items()|list", "keys()|list", "get('a')", "get('q', 1)", "join(ls)", "count('l')", "rstrip('d')", "splitlines()", "lstrip()",
           "capitalize()", "index('e')", "isdigit()", "zfill(5)", "partition('l')", "values()|list"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]


def expression(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(rng.choice([STRINGS, NUMBERS, LISTS, OTHERS]))
    kind = rng.randrange(9)
    a = expression(rng, depth - 1)
    if kind == 0:
        return f"({a})|{rng.choice(TEXT_FILTERS)}"
    if kind == 1:
        return f"({a}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 2:
        return f"({a}).{rng.choice(METHODS)}"
    if kind in (3, 4):
        return f"({a} {rng.choice(BINARY)} {expression(rng, depth - 1)})"
    if kind == 5:
        part = lambda: rng.choice(["", "", "0", "1", "-1", "2", "-2", "9"])
        return f"({a})[{part()}:{part()}{rng.choice(['', ':-1', ':2', ':-2', ':'])}]"
    if kind == 6:
        return f"({a})[{rng.choice(['0', '-1', '1', chr(39) + 'a' + chr(39), '7'])}]"
    if kind == 7:
        return f"({a} if {expression(rng, depth - 1)} else {expression(rng, depth - 1)})"
    return f"[{a}, {expression(rng, depth - 1)}]"


def render(source):
    try:
        # a copy: indent() of a list would extend the list itself
        return {"text": _compile_jinja_template(source).render(**copy.deepcopy(CONTEXT))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:120]}


def worth_keeping(source, result):
    text = result.get("text", "")
    # addresses, and things this engine documents as different: how views and generators print
    return not any(w in text for w in (" object at 0x", "dict_items(", "dict_keys(", "dict_values(", "<bound method", "<built-in", "Undefined")) and len(text) < 2000


def main():
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=700)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("out")
    args = parser.parse_args()
    rows = [{"template": s, **render(s)} for s in snippets()]
    rng = random.Random(args.seed)
    errors = 0
    while len(rows) < args.random + len(snippets()):
        source = "{{ " + expression(rng, rng.randrange(1, 4)) + " }}"
        result = render(source)
        if "error" in result and (errors := errors + 1) % 6:
            continue  # most random expressions are type errors; a few are enough
        if worth_keeping(source, result):
            rows.append({"template": source, **result})
    with open(args.out, "w") as f:
        f.write('{"context": ' + json.dumps(CONTEXT, ensure_ascii=False) + ',\n"rows": [\n')
        f.write(",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]}\n")


main()
