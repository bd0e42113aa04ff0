"""The problems: cases, and the lines of a solution in each language.

In the lines, `<|right~wrong|>` stands for a plausible mistake. Lines above `---` stand outside of the main function.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

LANGUAGES = ("python", "cpp", "java", "go", "javascript")
_FACTORS = """
def check(input, output, answer):
    a, b = map(int, output.split())
    return a > 1 and b > 1 and a * b == int(input)
"""
_GUESS = """
import sys
secret, left = int(open(sys.argv[1]).read()), 12
while left:
    line = sys.stdin.readline().split()
    if len(line) != 2:
        sys.exit(1)
    if line[0] == '!':
        sys.exit(0 if line[1] == str(secret) else 1)
    left -= 1
    print('<' if secret < int(line[1]) else '>=', flush=True)
sys.exit(1)
"""


@dataclass(frozen=True)
class Problem:
    name: str
    inputs: Sequence[str]
    answer: Callable[[str], str]
    lines: str
    """A section for each language, which begins with `LANGUAGE: `."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the task."""

    def cases(self) -> list[dict[str, str]]:
        return [{"input": text, "output": self.answer(text)} for text in self.inputs]

    def solution(self, language: str, right: bool) -> tuple[str, str]:
        """Return the lines outside of the main function, and those inside."""
        found = dict(re.findall(r"^(\w+): (.*(?:\n(?!\w+: ).*)*)", self.lines.strip(), re.MULTILINE))[language]
        chosen = re.sub(r"<\|(.*?)~(.*?)\|>", r"\1" if right else r"\2", found, flags=re.DOTALL)
        outside, _, inside = chosen.rpartition("---\n")
        return outside, inside


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def _spread(text: str) -> str:
    a = _numbers(text)[1:]
    mean = sum(a) / len(a)
    return f"{mean:.9f} {math.sqrt(sum((x - mean) ** 2 for x in a) / len(a)):.9f}\n"


def _longest_rise(text: str) -> str:
    best: list[int] = []
    for x in _numbers(text)[1:]:
        best.append(1 + max((b for y, b in zip(_numbers(text)[1:], best, strict=False) if y < x), default=0))
    return f"{max(best)}\n"


def _balanced(text: str) -> str:
    found = text
    while (shorter := re.sub(r"\(\)|\[\]", "", found)) != found:
        found = shorter
    return "NO\n" if found.strip() else "YES\n"


_seeded = random.Random(1)
_MANY = "".join(f"{_seeded.randrange(-(10**9), 10**9)}\n" for _ in range(50_000))
_RISING = "300\n" + " ".join(str(_seeded.randrange(1000)) for _ in range(300)) + "\n"

PROBLEMS = (
    Problem(
        "sum beyond 32 bits",
        ("2\n3 4\n", "3\n2000000000 2000000000 2000000000\n", "1\n-5\n"),
        lambda text: f"{sum(_numbers(text)[1:])}\n",
        """
python: say(sum(ints()[<|1~2|>:]))
cpp: <|ll~int|> s = 0; auto a = ints(); for (size_t i = 1; i < a.size(); i++) s += a[i]; say(s);
java: <|long~int|> s = 0; long[] a = ints(); for (int i = 1; i < a.length; i++) s += a[i]; say(s);
go: s := <|int64~int32|>(0)
for _, x := range ints()[1:] { s += <|int64~int32|>(x) }
say(s)
javascript: say(ints().slice(1).reduce((s, x) => s + x<|~ | 0|>, 0));
""",
    ),
    Problem(
        "power modulo m",
        ("3 5 7\n", "2999999987 1000000000001 3000000000\n", "2 0 1\n"),
        lambda text: f"{pow(*_numbers(text))}\n",
        """
python: a, b, m = ints()
say(pow(a, b, m)<|~ + b % 2|>)
cpp: auto a = ints(); ll r = 1 % a[2], x = a[0] % a[2];
for (ll b = a[1]; b; b /= 2) { if (b % 2) r = r * x % a[2]; x = (<|ll~int|>) (x * x % a[2]); }
say(r);
java: long[] a = ints(); long r = 1 % a[2], x = a[0] % a[2];
for (long b = a[1]; b > 0; b /= 2) { if (b % 2 == 1) r = r * x % a[2]; x = (<|long~int|>) (x * x % a[2]); }
say(r);
go: a := ints()
r, x := 1 % a[2], a[0] % a[2]
for b := a[1]; b > 0; b /= 2 { if b % 2 == 1 { r = r * x % a[2] }; x = int(<|int64~int16|>(x * x % a[2])) }
say(r)
javascript: let [x, b, m] = ints().map(<|BigInt~Number|>), one = <|1n~1|>, r = one % m;
for (x %= m; b >= one; b = b / (one + one)) { if (b % (one + one) >= one) r = r * x % m; x = x * x % m; }
say(r);
""",
    ),
    Problem(
        "least common multiple",
        ("4 6\n", "1 1 1\n", "12 18 30 7\n"),
        lambda text: f"{math.lcm(*_numbers(text))}\n",
        """
python: r = 1
for x in ints(): r = r * x // <|math.gcd(r, x)~1|>
say(r)
cpp: ll r = 1; for (ll x : ints()) r = r * x / <|__gcd(r, x)~1|>; say(r);
java: long r = 1;
for (long x : ints()) { long a = r, b = x; while (b != 0) { long t = a % b; a = b; b = t; } r = r * x / <|a~1|>; }
say(r);
go: r := 1
for _, x := range ints() { a, b := r, x; for b != 0 { a, b = b, a % b }; _ = a; r = r * x / <|a~1|> }
say(r)
javascript: const gcd = (a, b) => b ? gcd(b, a % b) : a;
say(ints().reduce((r, x) => r * x / <|gcd(r, x)~1|>, 1));
""",
    ),
    Problem(
        "words backwards",
        ("a b  c\n", "one\n", "  x  y z \n"),
        lambda text: " ".join(reversed(text.split())) + "\n",
        """
python: say(" ".join(<|reversed(line().split())~line().split()|>))
cpp: string w, s; while (cin >> w) s = <|w + " " + s~s + " " + w|>; say(s);
java: String s = ""; for (String w : line().trim().split(" +")) s = <|w + " " + s~s + " " + w|>; say(s);
go: s := ""
for _, w := range strings.Fields(line()) { s = <|w + " " + s~s + " " + w|> }
say(s)
javascript: say(line().split(" ").filter(w => w)<|.reverse()~|>.join(" "));
""",
    ),
    Problem(
        "Unicode",
        ("grüße\n", "日本語 \U0001f600!\n", "plain\n"),
        lambda text: f"{len(text.rstrip())} {text.rstrip()[::-1]}\n",
        """
python: s = line().rstrip("\\n")
say(f"{len(s<|~.encode()|>)} {s[::-1]}")
cpp: string s = line(), r, one; int n = 0;
for (char c : s) { if ((c & 0xC0) != 0x80) { r = one + r; one = ""; n++; } one += c; <|~n += (c & 0xC0) == 0x80;|> }
say(to_string(n) + " " + one + r);
java: String s = line(); int n = s.<|codePointCount(0, s.length())~length() + s.getBytes().length|>;
say(n + " " + new StringBuilder(s).reverse());
go: r := []rune(line()); n := len(<|r~string(r)|>)
for i, j := 0, len(r) - 1; i < j; i, j = i + 1, j - 1 { r[i], r[j] = r[j], r[i] }
say(fmt.Sprint(n, " ", string(r)))
javascript: const s = <|[...line()]~line().split("")|>; say(s.length + " " + s.reverse().join(""));
""",
    ),
    Problem(
        "mean and deviation",
        ("4\n1 2 3 5\n", "1\n7\n", "5\n1000000 1000001 1000002 1000003 1000007\n"),
        _spread,
        """
python: a = ints()[1:]; m = sum(a) / len(a)
say(f"{m} {math.sqrt(sum((x - m) ** 2 for x in a) / (len(a)<|~ + 1|>))}")
cpp: auto a = ints(); double m = 0, s = 0; int n = a.size() - 1; for (int i = 1; i <= n; i++) m += a[i]; m /= n;
for (int i = 1; i <= n; i++) s += (a[i] - m) * (a[i] - m);
cout << m << " "; say(sqrt(s / (n<|~ + 1|>)));
java: long[] a = ints(); double m = 0, s = 0; int n = a.length - 1; for (int i = 1; i <= n; i++) m += a[i]; m /= n;
for (int i = 1; i <= n; i++) s += (a[i] - m) * (a[i] - m);
say(m + " " + Math.sqrt(s / (n<|~ + 1|>)));
go: a := ints()[1:]; m, s, n := 0.0, 0.0, float64(len(a))
for _, x := range a { m += float64(x) / n }
for _, x := range a { s += (float64(x) - m) * (float64(x) - m) }
say(fmt.Sprint(m, " ", math.Sqrt(s / (n<|~ + 1|>))))
javascript: const a = ints().slice(1), m = a.reduce((s, x) => s + x, 0) / a.length;
say(m + " " + Math.sqrt(a.reduce((s, x) => s + (x - m) ** 2, 0) / (a.length<|~ + 1|>)));
""",
        {"relative_tolerance": 1e-6, "absolute_tolerance": 1e-6},
    ),
    Problem(
        "any two factors",
        ("15\n", "49\n", "1000000016000000063\n"),
        lambda text: "",
        """
python: n, d = ints()[0], 2
while n % d and d < 5: d += 1
if n % d: d = next(d for d in (7, 1000000007) if n % d == 0)
say(d); say(n // d<|~ + 1|>)
cpp: ll n = ints()[0], d = n > 1000000 ? 1000000007 : 2; while (n % d) d++; say(d); say(n / d<|~ + 1|>);
java: long n = ints()[0], d = n > 1000000 ? 1000000007 : 2; while (n % d != 0) d++; say(d); say(n / d<|~ + 1|>);
go: n := ints()[0]; d := 2
if n > 1000000 { d = 1000000007 }
for n % d != 0 { d++ }
say(d); say(n / d<|~ + 1|>)
javascript: let n = BigInt(line()), d = n > 1000000n ? 1000000009n : 2n; while (n % d) d++; say(d); say(n / d<|~ + 1n|>);
""",
        {"checker": {"language": "python", "source": _FACTORS}},
    ),
    Problem(
        "a number to guess",
        ("0\n", "1000\n", "617\n"),
        lambda text: "",
        """
python: low, high = 0, 1001
while high - low > 1:
    m = (low + high) // 2
    say(f"? {m}"); flush()
    low, high = (low, m) if line().strip() == "<" else (m, high)
say(f"! {<|low~high|>}")
cpp: int low = 0, high = 1001;
while (high - low > 1) {
    int m = (low + high) / 2; cout << "? "; say(m); flush_();
    if (line() == "<") high = m; else low = m;
}
cout << "! "; say(<|low~high|>);
java: int low = 0, high = 1001;
while (high - low > 1) {
    int m = (low + high) / 2; say("? " + m); out.flush();
    if (line().equals("<")) high = m; else low = m;
}
say("! " + <|low~high|>);
go: low, high := 0, 1001
for high - low > 1 {
    m := (low + high) / 2; say(fmt.Sprint("? ", m)); out.Flush()
    if line() == "<" { high = m } else { low = m }
}
say(fmt.Sprint("! ", <|low~high|>))
javascript: let low = 0, high = 1001;
while (high - low > 1) {
    const m = (low + high) >> 1; say("? " + m); flush();
    if (line() === "<") high = m; else low = m;
}
say("! " + <|low~high|>);
""",
        {"interactor": {"language": "python", "source": _GUESS}},
    ),
    Problem(
        "long output",
        ("3\n", "60000\n"),
        lambda text: "".join(f"{n * n}\n" for n in range(1, int(text) + 1)),
        """
python: for n in range(<|1~0|>, ints()[0] + 1): say(n * n)
cpp: ll m = ints()[0]; for (ll n = <|1~0|>; n <= m; n++) say(n * n);
java: long m = ints()[0]; for (long n = <|1~0|>; n <= m; n++) say(n * n);
go: m := ints()[0]
for n := <|1~0|>; n <= m; n++ { say(n * n) }
javascript: const m = ints()[0]; for (let n = <|1~0|>; n <= m; n++) say(n * n);
""",
    ),
    Problem(
        "long input",
        ("1 2\n", _MANY, "-7"),
        lambda text: f"{max(_numbers(text))} {min(_numbers(text))}\n",
        """
python: a = ints(); say(f"{max(a)} {min(a<|~[1:] + [0]|>)}")
cpp: auto a = ints(); cout << *max_element(a.begin(), a.end()) << " "; say(*min_element(a.begin(), a.end())<|~ + 1|>);
java: long[] a = ints(); java.util.Arrays.sort(a); say(a[a.length - 1] + " " + a[0<|~ + a.length / 2|>]);
go: a := ints(); sort.Ints(a); say(fmt.Sprint(a[len(a) - 1], " ", a[0<|~ + len(a) / 2|>]))
javascript: const a = ints().sort(<|(x, y) => x - y~|>); say(a[a.length - 1] + " " + a[0]);
""",
    ),
    Problem(
        "primes up to n",
        ("10\n", "1000000\n", "2\n"),
        lambda text: {"10": "4\n", "1000000": "78498\n", "2": "1\n"}[text.strip()],
        """
python: n = ints()[0]; s = bytearray([1]) * (n + 1); s[:2] = b"\\0\\0"
for i in range(2, int(n ** 0.5) + <|1~0|>): s[i * i :: i] = bytes(len(s[i * i :: i]))
say(sum(s)<|~ + 1|>)
cpp: int n = ints()[0], k = 0; vector<bool> s(n + 1);
for (ll i = 2; i <= n; i++) if (!s[i]) { k++; for (ll j = i * <|i~3|>; j <= n; j += i) s[j] = true; }
say(k);
java: int n = (int) ints()[0], k = 0; boolean[] s = new boolean[n + 1];
for (int i = 2; i <= n; i++) if (!s[i]) { k++; for (long j = (long) i * <|i~3|>; j <= n; j += i) s[(int) j] = true; }
say(k);
go: n, k := ints()[0], 0; s := make([]bool, n + 1)
for i := 2; i <= n; i++ { if !s[i] { k++; for j := i * <|i~3|>; j <= n; j += i { s[j] = true } } }
say(k)
javascript: const n = ints()[0], s = new Uint8Array(n + 1); let k = 0;
for (let i = 2; i <= n; i++) if (!s[i]) { k++; for (let j = i * <|i~3|>; j <= n; j += i) s[j] = 1; }
say(k);
""",
    ),
    Problem(
        "deep recursion",
        ("(())\n", "(" * 30_000 + ")" * 30_000 + "\n", "()\n"),
        lambda text: f"{text.count('(')}\n",
        """
python: sys.setrecursionlimit(10 ** 6)
s = line()
def depth(i): return 1 + depth(i + 1) if s[i] == "(" else <|0~1|>
say(depth(0))
cpp: string s;
int depth(size_t i) { return s[i] == '(' ? 1 + depth(i + 1) : <|0~1|>; }
---
s = line(); say(depth(0));
java: static String s;
static int depth(int i) { return s.charAt(i) == '(' ? 1 + depth(i + 1) : <|0~1|>; }
---
s = line(); say(depth(0));
go: s := line()
var depth func(i int) int
depth = func(i int) int { if s[i] == '(' { return 1 + depth(i + 1) }; return <|0~1|> }
say(depth(0))
javascript: const s = line(), depth = i => s[i] === "(" ? 1 + depth(i + 1) : <|0~1|>; say(depth(0));
""",
    ),
    Problem(
        "lines of Windows",
        ("1 2\r\n3\r\n", "5\r\n", "7 8 9\n10\n"),
        lambda text: "".join(f"{sum(_numbers(line))}\n" for line in text.splitlines()),
        """
python: for s in lines(): say(sum(map(int, s.split()))<|~ + 1|>)
cpp: for (auto s : lines()) { istringstream in(s); ll x, r = 0; while (in >> x) r += x; say(r<|~ + 1|>); }
java: for (String s : lines()) { long r = 0; for (String w : s.trim().split(" ")) r += Long.parseLong(w); say(r<|~ + 1|>); }
go: for _, s := range lines() {
    r := 0; for _, w := range strings.Fields(s) { x, _ := strconv.Atoi(w); r += x }; say(r<|~ + 1|>) }
javascript: for (const s of lines()) say(s.trim().split(" ").reduce((r, w) => r + Number(w), 0)<|~ + 1|>);
""",
    ),
    Problem(
        "a triangle, every byte",
        ("3\n", "1\n"),
        lambda text: "".join(" " * (int(text) - n) + "*" * n + "\n" for n in range(1, int(text) + 1)),
        """
python: m = ints()[0]
for n in range(1, m + 1): say(" " * (m - n) + "*" * n<|~ + " "|>)
cpp: int m = ints()[0]; for (int n = 1; n <= m; n++) say(string(m - n, ' ') + string(n, '*')<|~ + " "|>);
java: int m = (int) ints()[0]; for (int n = 1; n <= m; n++) say(" ".repeat(m - n) + "*".repeat(n)<|~ + " "|>);
go: m := ints()[0]
for n := 1; n <= m; n++ { say(strings.Repeat(" ", m - n) + strings.Repeat("*", n)<|~ + " "|>) }
javascript: const m = ints()[0]; for (let n = 1; n <= m; n++) say(" ".repeat(m - n) + "*".repeat(n)<|~ + " "|>);
""",
        {"compare": "exact"},
    ),
    Problem(
        "a table of lines",
        ("a bc\n", "x\n"),
        lambda text: "".join(f"{w}  |  {len(w)}\n" for w in text.split()) + "\n",
        """
python: for w in line().split(): say(f"{w}  |<|  ~ |>{len(w)}")
cpp: string w; while (cin >> w) say(w + "  |<|  ~ |>" + to_string(w.size()));
java: for (String w : line().trim().split(" ")) say(w + "  |<|  ~ |>" + w.length());
go: for _, w := range strings.Fields(line()) { say(fmt.Sprint(w, "  |<|  ~ |>", len(w))) }
javascript: for (const w of line().split(" ")) say(w + "  |<|  ~ |>" + w.length);
""",
        {"compare": "lines"},
    ),
    Problem(
        "nothing to print",
        ("0\n", "2\n", ""),
        lambda text: "".join(f"{n}\n" for n in range(int(text or 0))),
        """
python: for n in range(sum(ints())<|~ or 1|>): say(n)
cpp: ll m = 0; for (ll x : ints()) m = x; for (ll n = 0; n < m<|~ + 1|>; n++) say(n);
java: long m = 0; for (long x : ints()) m = x; for (long n = 0; n < m<|~ + 1|>; n++) say(n);
go: m := 0
for _, x := range ints() { m = x }
for n := 0; n < m<|~ + 1|>; n++ { say(n) }
javascript: const m = ints()[0] ?? 0; for (let n = 0; n < m<|~ + 1|>; n++) say(n);
""",
    ),
    Problem(
        "numbers of a hundred digits",
        (f"{'9' * 100} 1\n", "5 7\n", f"{'123' * 30} {'987' * 33}\n"),
        lambda text: f"{sum(_numbers(text))}\n",
        """
python: a, b = ints(); say(a + b<|~ + (a > 9)|>)
cpp: string a, b, r; cin >> a >> b; if (a.size() < b.size()) swap(a, b); b = string(a.size() - b.size(), '0') + b; int k = 0;
for (int i = a.size() - 1; i >= 0; i--) { k += a[i] + b[i] - 96; r += char(48 + k % 10); k /= 10; }
if (k<| ~ > 1|>) r += '1'; reverse(r.begin(), r.end()); say(r);
java: String[] w = line().trim().split(" ");
say(new java.math.<|BigInteger(w[0])~BigDecimal(Double.parseDouble(w[0]))|>.add(new java.math.<|BigInteger~BigDecimal|>(w[1])));
go: w := strings.Fields(line()); a, b := new(big.Int), new(big.Int); a.SetString(w[0], 10); b.SetString(w[1], 10)
say(a.<|Add~Sub|>(a, b))
javascript: const [a, b] = line().split(" ").map(<|BigInt~Number|>); say(a + b);
""",
    ),
    Problem(
        "words by length",
        ("ccc a bb b\n", "z y x\n", "b B aa A\n"),
        lambda text: "".join(f"{w}\n" for w in sorted(text.split(), key=lambda w: (len(w), w))),
        """
python: for w in sorted(line().split(), key=lambda w: <|(len(w), w)~len(w)|>): say(w)
cpp: vector<string> a; string s; while (cin >> s) a.push_back(s);
sort(a.begin(), a.end(), [](auto &x, auto &y) { return x.size() != y.size() ? x.size() < y.size() : x <|<~>|> y; });
for (auto &w : a) say(w);
java: String[] a = line().trim().split(" ");
Arrays.sort(a, Comparator.comparing(String::length)<|.thenComparing(w -> w)~.thenComparing(Comparator.reverseOrder())|>);
for (String w : a) say(w);
go: a := strings.Fields(line())
sort.Slice(a, func(i, j int) bool { if len(a[i]) != len(a[j]) { return len(a[i]) < len(a[j]) }; return a[i] <|<~>|> a[j] })
for _, w := range a { say(w) }
javascript: const a = line().split(" ").sort((x, y) => x.length - y.length || (x <|<~>|> y ? -1 : 1));
for (const w of a) say(w);
""",
    ),
    Problem(
        "brackets that match",
        ("([])[]\n", "([)]\n", ")(\n", "((\n"),
        _balanced,
        """
python: s = []
for c in line().strip(): s.pop() if s and s[-1] + c in ("()", "[]"<|~, "[)", "(]"|>) else s.append(c)
say("NO" if s else "YES")
cpp: string s; for (char c : line()) {
    if (s.size() && ((s.back() == '(' && c == ')') || (s.back() == '[' && c == ']')<|~ || c == ')' || c == ']'|>)) s.pop_back();
    else s += c; }
say(s.empty() ? "YES" : "NO");
java: String s = line(); for (int i = 0; i < 99; i++) s = s.replace("()", "").replace("[]", "")<|~.replace("([)]", "")|>;
say(s.trim().isEmpty() ? "YES" : "NO");
go: s := line()
for i := 0; i < 99; i++ {
    s = strings.ReplaceAll(strings.ReplaceAll(s, "()", ""), "[]", ""); s = strings.ReplaceAll(s, <|"{"~"([)]"|>, "") }
if s == "" { say("YES") } else { say("NO") }
javascript: const s = []; for (const c of line()) {
    if (["()", "[]"<|~, "[)", "(]"|>].includes(s[s.length - 1] + c)) s.pop(); else s.push(c); }
say(s.length ? "NO" : "YES");
""",
    ),
    Problem(
        "the longest rise",
        ("6\n3 1 2 2 5 4\n", "1\n9\n", _RISING),
        _longest_rise,
        """
python: best = []
for x in ints()[1:]: i = bisect.<|bisect_left~bisect_right|>(best, x); best[i : i + 1] = [x]
say(len(best))
cpp: vector<ll> best; auto a = ints();
for (size_t k = 1; k < a.size(); k++) {
    auto i = <|lower_bound~upper_bound|>(best.begin(), best.end(), a[k]);
    if (i == best.end()) best.push_back(a[k]); else *i = a[k]; }
say(best.size());
java: TreeSet<Long> best = new TreeSet<>(); long[] a = ints();
for (int k = 1; k < a.length; k++) {
    Long i = best.<|ceiling~higher|>(a[k]<|~ - 1|>); if (i != null) best.remove(i); best.add(a[k]); }
say(best.size()<|~ + 1|>);
go: best := []int{}
for _, x := range ints()[1:] {
    i := sort.SearchInts(best, x<|~ + 1|>); if i == len(best) { best = append(best, x) } else { best[i] = x } }
say(len(best))
javascript: const a = ints().slice(1), best = a.map(() => 1);
for (let i = 0; i < a.length; i++) for (let j = 0; j < i; j++) if (a[j] <|<~<=|> a[i]) best[i] = Math.max(best[i], best[j] + 1);
say(Math.max(...best));
""",
    ),
)
