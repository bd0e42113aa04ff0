"""The rule of docs/math.md: one row a reference, with answers that are right and answers that are not."""

from __future__ import annotations

import pytest

from rollyard.tasks.scoring import math_answers


@pytest.fixture(scope="module", autouse=True)
def algebra() -> None:
    math_answers.load_algebra()


RULE: list[tuple[str, list[str], list[str]]] = [
    ("15", ["15 miles"], ["15 thousand", r"15\text{ million}", "1 5", "2x = 30", "x - 1 = 14"]),
    ("x = 15", ["x=15", "15 = x"], ["x - 1 = 14", "2x = 30"]),
    ("15/2", ["7 1/2", "7.5", "7½", "7 ½"], ["1 5/2", "½7", "15½"]),
    (r"50\%", ["50 percent", r"50\text{ percent}"], ["0.5 percent"]),
    (r"\ln x", [r"\frac{1}{2}\ln x^2"], [r"\ln x + 1"]),
    (r"\ln(ab)", [r"\ln a + \ln b"], [r"\ln a \ln b"]),
    (r"\ln(x - 5)", [r"\ln(x-5)"], [r"\ln(x-6)"]),
    ("x^2+1", ["1 + x^2"], ["x^2+i"]),
    (
        "15070",
        [
            "15070",
            "15{,}070",
            "15,070",
            r"15\,070",
            "15070.0",
            "15070.",
            r"1.507\times10^4",
            r"1.507 \times 10^{4}",
            "1.507e4",
            r"1.507\cdot 10^4",
            "x = 15070",
            "15070 = x",
            "n=15{,}070",
            r"15070\text{ apples}",
            "15070 apples",
            r"\$15070",
            "$15070$",
            r"15070\,\mathrm{cm}",
            r"15070 \text{ cm}^2",
            "+15070",
            r"x \approx 15070",
            r"\mathbf{15070}",
            "{15070}",
            "(15070)",
            r"\boxed{15070}",
        ],
        [
            "417 * 36 + 58",
            r"417 \cdot 36 + 58",
            r"417 \times 36 + 58",
            "15012+58",
            r"\lfloor 15070.5 \rfloor",
            r"\frac{30140}{2}",
            "30140/2",
            r"\frac{15070}{1}",
            r"\sqrt{227104900}",
            "15070^1",
            r"150.7\times10^2",
            r"15070\%",
            "1 = 15070",
            "15070 = 15070 = 15070",
            r"15070 \approx 1",
            r"\not= 15070",
            r"x \not= 15070",
            r"\neg = 15070",
            r"\text{not } = 15070",
            "≠ 15070",
            r"1 \approx 15070",
            "x = 417*36+58",
            "15071",
            "15070.01",
            "15070, 15071",
            r"15070 \text{ or } 15071",
            "-(-15070)",
            "",
            "fifteen",
            "x",
            "15070x",
            "15070 - 0",
            r"15070\text{ or 4}",
            "15070 = 417*36+58",
            "15070!",
            "15070^{1}",
            "0+15070",
            "15070 + 0i",
            "|15070|",
            r"\max(15070,1)",
            "1.5070",
            "15.070",
            r"15070 \pm 1",
        ],
    ),
    ("-3", ["-3", "−3"], []),
    ("10000", [], ["10^4", "100^2"]),
    ("3", [], ["3 or 4", r"3 \text{ and } 4", "3,4", r"\{3,4\}", r"\pm 3", "3.0000001"]),
    ("1234567", [], ["1234568"]),
    ("3628800", [], ["10!"]),
    ("10", [], [r"\binom{5}{2}"]),
    ("2", [], [r"\log_2 4", r"\sqrt{4}"]),
    ("0.0000004", [r"4\times10^{-7}", "4e-7"], ["0.0", "0", "0.00000041"]),
    ("0.3", ["0.30000000000000004"], []),
    (
        "1/2",
        ["0.5", r"\frac{1}{2}", r"\dfrac12", r"\frac12", r"50\%", "50%", "½"],
        ["2/4", r"\frac{2}{4}", "0.51", r"\frac{1}{", r"0.5\%", "one half", "1:2"],
    ),
    ("0.5", [".5", "1/2"], [r"\sin 30^\circ"]),
    (r"\frac{1}{2}", [r"\tfrac{1}{2}"], []),
    ("-1/2", [r"-\frac{1}{2}", r"\frac{-1}{2}"], []),
    ("1/3", ["0.333333"], ["0.333"]),
    ("3/2", [r"1\frac{1}{2}", "1 1/2", "1.5", r"\frac{3}{2}"], []),
    ("4/6", ["2/3"], []),
    ("355/113", [], [r"\pi"]),
    (r"\pi", ["3.1415927"], [r"\frac{355}{113}", "3.14"]),
    (r"50\%", ["50", r"50\%"], ["0.5"]),
    ("50", [], [r"50\%"]),
    ("50%", ["50%"], []),
    (r"2\sqrt{2}", [r"\sqrt{8}", "2.828427125"], [r"x\sqrt{2}"]),
    (r"\sqrt{8}", [r"2\sqrt{2}"], []),
    (r"2\sqrt2", [r"2\cdot\sqrt{2}"], []),
    (r"\frac{\sqrt{3}}{2}", [r"\sqrt{\frac{3}{4}}"], [r"\sin(\pi/3)", r"\sin 60^\circ"]),
    (r"\frac{\sqrt{2}}{2}", [r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", r"0.5\sqrt{2}"], []),
    (r"\frac{\pi}{2}", [r"\pi/2", r"0.5\pi"], []),
    (r"\frac\pi2", [r"\frac{1}{2}\pi"], []),
    (r"\sqrt{15070}", [], [r"\sqrt{417*36+58}"]),
    (r"\sqrt{6}", [], [r"\sqrt{2}\sqrt{3}", r"\sqrt{2 \cdot 3}"]),
    (r"3\sqrt{2}", [], [r"\sqrt{2}+\sqrt{8}"]),
    (r"\sqrt{2}", ["1.414214", r"\sqrt2", "2^{0.5}"], ["1.41"]),
    (r"1+\sqrt{2}", [r"\sqrt{2}+1"], []),
    (r"\frac{1+\sqrt{5}}{2}", [r"\frac{\sqrt5+1}{2}", r"\frac12+\frac{\sqrt5}{2}"], []),
    ("2^{100}", ["4^{50}", "1267650600228229401496703205376"], [r"2^{50}\cdot2^{50}", "2^{100}+1"]),
    ("10!", ["3628800", "10!"], []),
    (r"\ln 2", [r"\frac{1}{2}\ln 4"], []),
    (r"\binom{10}{3}", ["120"], []),
    ("1+i", ["i+1"], []),
    ("2i", [], ["(1+i)^2"]),
    (r"\sqrt[3]{2}", ["2^{1/3}"], []),
    ("x^2+2x+1", ["(x+1)^2"], ["x^2+2x+2"]),
    ("(x+1)^2", ["x^2 + 2x + 1"], []),
    ("2x+3", ["y=2x+3"], []),
    ("y=2x+3", ["2x+3", "y = 3 + 2x", "2x-y+3=0"], ["2x-y+4=0"]),
    ("x^2+y^2=1", ["x^2 + y^2 = 1", "2x^2+2y^2=2"], ["x+y=1"]),
    ("2x", [], [r"\frac{d}{dx}x^2"]),
    (r"\frac{n(n+1)}{2}", [r"\frac{n^2+n}{2}"], []),
    (r"\sin 2x", [r"2\sin x\cos x"], []),
    ("x", ["x + 0"], ["y", "|x|", r"\pm x"]),
    ("xy", ["yx"], []),
    (r"\frac{1}{x}", ["x^{-1}"], []),
    ("x=3", ["3", "x=3"], ["y=3"]),
    ("x_1", ["x_1"], []),
    (
        "(1,2)",
        ["(1, 2)", r"\left( 1, 2 \right)", "(x,y) = (1,2)"],
        [r"\{1,2\}", "(2,1)", "[1,2]", "1,2", "(1,2,3)", "(x, y) = (1, 3)"],
    ),
    (r"\{1,2\}", [r"\{2,1\}", "1,2", r"S = \{1, 2\}"], ["(1,2)", r"\{1,2,2\}"]),
    ("1,2", ["2, 1", "1 and 2", r"x = 1 \text{ or } x = 2"], []),
    ("[1,2)", ["[1,2)"], ["[1,2]"]),
    ("(15070,2)", [], ["(417*36+58,2)"]),
    (r"(3,\frac{\pi}{2})", [r"\left(3, \pi/2\right)"], []),
    (r"\pm 2", ["2,-2", r"\pm 2"], []),
    (r"1 \pm \sqrt{2}", [r"1+\sqrt{2}, 1-\sqrt{2}"], []),
    (r"(-\infty,1)\cup(2,\infty)", [r"(2, \infty) \cup (-\infty, 1)"], []),
    (r"(2,\infty)", ["x>2"], []),
    ("x>2", [r"(2,\infty)"], ["x<2"]),
    (r"[2,\infty)", [r"x \geq 2"], []),
    (r"1<x\le 2", ["(1,2]"], []),
    ("x > 2", ["2 < x"], []),
    (r"x \in (1,2)", ["(1,2)"], []),
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        [r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"],
        [r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"],
    ),
    (r"\begin{pmatrix}1/2\\3\end{pmatrix}", [r"\begin{pmatrix}0.5\\3\end{pmatrix}"], []),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", [], [r"\begin{pmatrix}1&2\end{pmatrix}", "(1,2)"]),
    ("A", [r"\text{(A)}", "(A)", r"\textbf{A}"], ["B"]),
    (r"\text{blue}", ["Blue"], ["lube"]),
    ("blue", [r"\text{blue}"], []),
    ("even", [], ["odd"]),
    ("yes", [], ["no"]),
    ("Monday", [r"\text{Monday.}"], []),
    ("90", [r"90^\circ"], []),
    (r"90^\circ", ["90"], []),
    ("5", ["5 cm"], []),
    ("1011_2", ["1011_2", "1011"], []),
    ("10:30", ["10:30"], ["1/3"]),
    (r"\infty", [r"\infty", r"+\infty"], []),
    (r"-\infty", [], [r"\infty"]),
    ("3:4", ["3:4"], []),
    (r"5 \text{ cm}", ["5"], []),
    ("f(x)=x+1", ["x+1"], []),
    ("0", ["0", "0.0"], ["x-x"]),
    (r"\sqrt{4}", ["2"], []),
    ("2,3", ["x = 2, 3"], []),
    ("12", ["AB = 12", "|AB| = 12", r"\overline{AB} = 12"], []),
    ("30", [r"\angle ABC = 30^\circ"], []),
    ("1/4", ["P(A) = 1/4"], []),
    ("417*36+58", ["15070", "417*36+58"], []),
    ("0.1", ["0.1000000001", r"10\%"], []),
    ("5/9", ["0.555556"], ["0.5556"]),
    ("-7", ["-7"], ["7"]),
    ("1000000", [r"1\times10^6"], ["10^6"]),
    ("6.02e23", [r"6.02\times10^{23}"], []),
    ("14", [], [r"x=14 \text{ or } x=-14"]),
    (r"\frac{9}{4}", ["2.25", r"2\frac{1}{4}"], []),
    ("11", [r"11\text{ years old}"], []),
    ("2.5", ["$2.50"], []),
    (r"\$2.50", ["2.5"], []),
    ("18,000", ["18000"], []),
    (r"18\,000", ["18000"], []),
    ("k=5", ["5"], []),
    ("x^2", ["x^{2}", r"x \cdot x"], []),
    ("3x+2", ["2+3 x"], []),
    ("e^2", ["e^{2}", "7.389056099"], []),
    (r"4\pi", [r"4 \pi", "12.566370614", "4pi", "4*pi"], ["12.57", "p i", "pi"]),
    (r"2\pi\sqrt{\frac{L}{g}}", ["2*pi*sqrt(L/g)", "T = 2 pi sqrt(L/g)", "pi*sqrt(4*L/g)"], ["3*pi*sqrt(L/g)"]),
    (r"\pi r^2", ["pi r^2", "pi*r**2"], ["p*i*r^2"]),
    ("pi bond", ["Pi bond"], ["sigma bond"]),
    (r"16\pi", [r"\pi \cdot 16"], [r"4^2\pi"]),
    (r"\frac{4\pi}{3}", [r"\frac{4}{3}\pi"], []),
    (r"2+\sqrt3", [r"\sqrt{3}+2"], []),
    (r"\sqrt{2}+\sqrt{3}", [r"\sqrt{5+2\sqrt{6}}"], []),
    (r"-\sqrt{2}", [r"-1\sqrt{2}"], []),
    (r"\cot x", [r"\frac{1}{\tan x}"], []),
    (r"1-\cos^2 x", [r"\sin^2 x"], []),
    ("a", ["A"], []),
    (r"\mathbf{i}", ["i"], []),
    ("[0,1]", [r"0 \le x \le 1"], []),
    (r"(-\infty,3]", [r"x \le 3"], []),
    (r"y \ge 2", [r"[2,\infty)"], []),
    (r"\text{(A)}", ["A"], []),
    ("(C)", ["C"], []),
    (r"\text{C}", [r"\textbf{(C)}"], []),
    ("C", [r"\text{C}", "C. 5"], ["B. 5"]),
    (r"\text{even}", [r"\text{Even}"], []),
    (r"\emptyset", [r"\emptyset"], []),
    (r"\text{no solution}", [r"\text{No solution}"], []),
    (r"120^\circ", ["120"], []),
    ("120", [r"120\text{ degrees}"], []),
    (r"10\%", ["10"], ["0.1", r"\frac{1}{10}"]),
    ("(0,0),(1,2)", ["(1,2),(0,0)"], []),
    (r"\left(\frac{1}{2},3\right)", ["(0.5, 3)"], []),
    (r"x=\frac{1}{2}", [r"\frac12"], []),
    (r"\frac{1}{\sqrt{3}}", [r"\frac{\sqrt{3}}{3}"], []),
    ("2^{10}", ["1024"], []),
    ("1024", [], ["2^{10}"]),
    (r"\frac{3}{8}", [r"37.5\%"], []),
    ("3x^2-2", ["3x^2 -2 "], []),
    ("n^2", ["n^2"], []),
    ("y = 3x - 1", ["3x-y=1"], []),
    ("x^2 - 1", ["(x-1)(x+1)"], []),
    ("(x-1)(x+1)", ["x^2-1"], []),
    (r"\frac{x+1}{x}", [r"1+\frac1x"], []),
    (r"\sqrt{x^2}", [], ["x"]),
    ("7!", ["5040"], []),
    (r"\binom{8}{3}", ["56"], []),
    (r"\log_2 3", ["1.5849625"], [r"\frac{\ln 3}{\ln 2}"]),
    ("2, 3, 5", ["5,3,2"], []),
    ("A, C", ["A,C"], []),
    ("6 - 2i", ["-2i+6"], []),
    ("1 + 2i", ["1+2 i"], []),
    ("1+2i", [], ["2+i"]),
    ("4^{1/3}", [r"\sqrt[3]{4}"], []),
    ("1.5", [], ["1,5"]),
    ("1200", ["1,200"], []),
    ("(1,200)", ["(1,200)"], []),
    ("2/3", [], ["4/6"]),
    ("16/3", [r"5\frac{1}{3}"], []),
    ("6", [r"6\ \text{units}"], []),
    ("36", [r"36 \text{ square units}", r"36\mbox{ cm}^2"], []),
    ("8", [r"8\text{ cm}^{3}"], []),
    ("3.14", [], [r"\pi"]),
    ("22/7", [], [r"\pi"]),
]


@pytest.mark.parametrize(("reference", "good", "bad"), RULE, ids=[row[0] for row in RULE])
def test_an_answer_in_simplest_form_is_right_and_the_question_said_back_is_not(
    reference: str, good: list[str], bad: list[str]
) -> None:
    assert math_answers.is_right(reference, reference), "the reference answers itself"
    assert [answer for answer in good if not math_answers.is_right(reference, answer)] == [], "should be right"
    assert [answer for answer in bad if math_answers.is_right(reference, answer)] == [], "should be wrong"


REFUSED_BEFORE = [
    (r"5\ \mathrm{m/s^2}", "5"), ("9.81", r"9.81\,\mathrm{m/s^2}"), ("45 N", "45"), (r"12\pi", r"12\pi\text{ cm}"),
    ("B", "(B) 12"), ("(1,2)", r"x\in(1,2)"), (r"\emptyset", r"\varnothing"), ("1+2i", r"1+2\mathrm{i}"),
    (r"-\frac12", r"\frac{1}{-2}"), (r"\frac13", r"0.\overline{3}"), (r"2\sqrt3", "2√3"), ("e^{x}", "exp(x)"),
    ("1000", "€1000"), (r"(-\infty,\infty)", r"\mathbb{R}"), ("A", "A)"), ("A", "Option A"),
    ("15,070", "15,070 apples"), ("AB", "A, B"),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "answer"), REFUSED_BEFORE)
def test_units_choices_sets_and_other_spellings_of_a_right_answer_are_right(reference: str, answer: str) -> None:
    assert math_answers.is_right(reference, answer)


REWARDED_BEFORE = [
    ("12", "12 pi"), ("2", "2 xy"), ("15070", r"15070\text{ k}"), ("7", r"7\text{ or eight}"),
    (r"5\text{ kg}", r"5\text{ m/s}"), (r"2\text{ A}", r"2\text{ mA}"), ("12", "12_2"), (r"\ln|x|", r"\ln x"),
    (r"(-\infty,1]", r"|x| \le 1"), (r"60^\circ", r"60\text{ rad}"), (r"60\text{ radians}", "60°"),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "answer"), REWARDED_BEFORE)
def test_a_word_of_two_letters_another_unit_or_another_base_is_wrong(reference: str, answer: str) -> None:
    assert not math_answers.is_right(reference, answer)


JUDGED_WRONG_ELSEWHERE = [
    (r"\frac{1}{3^{80}}", r"\frac{1}{3^{79}}", False), ("(0,2)", "0<x<2", True), (r"10\%", r"10\%", True),
    ("0.1", r"10\%", True), ("10", r"10\%", False), (r"\{1,2,3\}", "2", False), ("x=3,7", "x=1,7", False),
    ("4", r"\pm4", False), (r"\pm4", "4", False), ("11:30", "5:30", False), ("3000", "3{,}000", True),
    ("1000.5", "1.000,5", False), (r"\text{B}", "(B)", True), (r"\sqrt{\frac{1}{{2}}}", r"\sqrt{\frac{1}{2}}", True),
    ("7", "", False), ("42", ", ".join(map(str, range(100))), False), ("1/3", "0.333", False), ("7", r"\boxed{7}", True),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{bmatrix}1&2\end{bmatrix}", True),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "answer", "right"), JUDGED_WRONG_ELSEWHERE)
def test_an_answer_that_other_judges_got_wrong_is_judged_right(reference: str, answer: str, right: bool) -> None:
    assert math_answers.is_right(reference, answer) == right


@pytest.mark.parametrize(
    ("reference", "answer", "why"),
    [
        (r"12\pi", "12", r"the answer 12 is not equal to 12\pi"),
        ("12", "13", "the answer 13 is not equal to 12"),
        ("12", "1, 2", "the answer 1, 2 is a list, but 12 is one value"),
        (
            "(1,2)",
            "[1,2]",
            "the answer [1,2] is a tuple or an interval in [ ], but (1,2) is a tuple or an interval in ( )",
        ),
        ("12", "2*6", "the answer 2*6 is not a calculated number, but 12 is"),
        ("1/2", "2/4", "the answer 2/4 is not fully calculated"),
        ("5 cm", "5 m", "the answer 5 m has another unit than 5 cm"),
        ("5", "", "the answer is empty"),
        ("5", "{5", "the brackets of the answer {5 do not match, or are nested too deeply"),
        ("5", "5", "the answer 5 is right"),
    ],
)
def test_a_judgement_says_its_reason(reference: str, answer: str, why: str) -> None:
    assert math_answers.judge_answer(reference.encode(), answer.encode())["notes"] == [why]


@pytest.mark.parametrize("reference", ["}{", "", " ", "\\frac{1}{"])
def test_a_reference_that_is_no_mathematics_is_the_tasks_fault(reference: str) -> None:
    with pytest.raises(math_answers.BadReference):
        math_answers.is_right(reference, "42")


LONG = [
    "_" * 400, "\\text{a}" * 200 + "1", "a" * 400 + "1", "(" * 400, "1" * 400 + "x", "1,111" * 300, "1 " * 300,
    "\\pm" * 500, "0.." * 600, "{" * 900 + "}" * 900, "x=" * 900, "\\frac" * 100, "9**9**9", "9^{9^{9^{9}}}", "10^{10^{10}}!",
    "\\text{" * 300 + "1", "\\text{{a}" * 200 + "1}", "sqrt(" * 300, "\\sqrt(" * 300 + ")" * 300, "5 " + "m s " * 300,
    "(A) " * 400, "A, " * 500 + "A", "\\in " * 400, "]0,1[" * 300, "€" * 500, "5" + "'" * 900, "\\frac{1" * 300, "=" * 900,
]  # fmt: skip


@pytest.mark.parametrize("answer", [*LONG, "}{", "\\frac{1}{", "None", "", "\\text{half}"])
def test_no_text_takes_long_or_breaks_the_rule(answer: str) -> None:
    for reference in ("42", r"\sqrt{2}", "(1,2)"):
        assert not math_answers.is_right(reference, answer)
