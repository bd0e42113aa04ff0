"""Programs made of a problem's lines: right, wrong, slow, crashing, cheating, and right in an odd way."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.code_problems.problems import LANGUAGES, PROBLEMS, Problem

FILES = {"python": "s.py", "cpp": "s.cpp", "java": "Main.java", "go": "s.go", "javascript": "s.js"}
_PYTHON = """
import bisect, math, os, signal, sys, threading, time
END = "@END@"
def line(): return sys.stdin.readline()
def ints(): return [int(word) for word in sys.stdin.read().split()]
def lines(): return sys.stdin.read().splitlines()
def say(x): sys.stdout.write(f"{x}{END}")
def flush(): sys.stdout.flush()
def main():
@BEFORE@
@INSIDE@
@RUN@
flush()
@AFTER@
"""
_CPP = """
#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include <unistd.h>
using namespace std;
typedef long long ll;
string line() { string s; getline(cin, s); return s; }
vector<ll> ints() { vector<ll> a; ll x; while (cin >> x) a.push_back(x); return a; }
vector<string> lines() { vector<string> a; string s; while (getline(cin, s)) a.push_back(s); return a; }
template <class T> void say(T x) { cout << x << "@END@"; }
void flush_() { cout.flush(); }
@OUTSIDE@
void run() {
@BEFORE@
@INSIDE@
}
int main() { cout.precision(12); @RUN@ flush_(); @AFTER@ return 0; }
"""
_JAVA = """
import java.io.*;
import java.util.*;
public class Main {
static BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
static PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16));
static String line() throws IOException { String s = in.readLine(); return s == null ? "" : s; }
static List<String> lines() throws IOException {
    List<String> a = new ArrayList<>(); for (String s; (s = in.readLine()) != null; ) a.add(s); return a; }
static long[] ints() throws IOException {
    StreamTokenizer t = new StreamTokenizer(in); t.resetSyntax(); t.whitespaceChars(0, 32); t.wordChars(33, 255);
    List<Long> a = new ArrayList<>(); while (t.nextToken() != StreamTokenizer.TT_EOF) a.add(Long.parseLong(t.sval));
    return a.stream().mapToLong(x -> x).toArray(); }
static void say(Object x) { out.print(x); out.print("@END@"); }
@OUTSIDE@
static void run() throws Exception {
@BEFORE@
@INSIDE@
}
public static void main(String[] arguments) throws Exception { @RUN@ out.flush(); @AFTER@ }
}
"""
_GO = """
package main
import ("bufio"; "fmt"; "io"; "math"; "math/big"; "os"; "runtime"; "sort"; "strconv"; "strings"; "syscall"; "time")
var _, _, _, _, _, _ = math.Pi, big.NewInt, sort.Ints, strconv.Itoa, syscall.Kill, time.Sleep
var _ = runtime.GC
var in, out = bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
func line() string { s, _ := in.ReadString('\\n'); return strings.TrimRight(s, "\\r\\n") }
func text() string { b, _ := io.ReadAll(in); return string(b) }
func lines() []string { return strings.Split(strings.TrimRight(text(), "\\r\\n"), "\\n") }
func ints() []int {
    a := []int{}; for _, w := range strings.Fields(text()) { x, _ := strconv.Atoi(w); a = append(a, x) }; return a }
func say(x any) { fmt.Fprint(out, x, "@END@") }
func run() {
@BEFORE@
@INSIDE@
}
func main() { @RUN@; out.Flush(); @AFTER@ }
"""
_JAVASCRIPT = """
const fs = require("fs");
let said = [];
function line() {
    const byte = Buffer.alloc(1), read = [];
    for (;;) {
        let n = 0;
        try { n = fs.readSync(0, byte); } catch (e) { if (e.code === "EAGAIN") continue; if (e.code !== "EOF") throw e; }
        if (n === 0 || byte[0] === 10) break;
        read.push(byte[0]);
    }
    return Buffer.from(read).toString();
}
const text = () => fs.readFileSync(0, "utf8");
const lines = () => text().split("\\n").filter(s => s.trim());
const ints = () => text().split(/\\s+/).filter(w => w).map(Number);
const say = x => { said.push(x + "@END@"); };
const flush = () => { let b = Buffer.from(said.join("")); said = []; while (b.length) b = b.subarray(fs.writeSync(1, b)); };
const run = () => {
@BEFORE@
@INSIDE@
};
@RUN@; flush(); @AFTER@
"""
_PROGRAMS = {"python": _PYTHON, "cpp": _CPP, "java": _JAVA, "go": _GO, "javascript": _JAVASCRIPT}
_RUN = {"python": "main()", "cpp": "run();", "java": "run();", "go": "run()", "javascript": "run()"}


@dataclass(frozen=True)
class Twist:
    """A change of a program, and what comes of it."""

    name: str
    places: dict[str, dict[str, str]] = field(default_factory=dict)
    """Language -> place of the program -> text there. `*` is each language."""
    why: str | None = None
    """Expression for the note; None: the reward is 1."""
    only_tokens: bool = False
    """True: the reward is 1 unless every byte counts."""
    in_one_line: bool = False
    """True: nor where lines count."""
    right: bool = True
    """False: with the problem's mistake."""

    def in_language(self, language: str) -> dict[str, str] | None:
        if not self.places:
            return {}
        found = {**self.places.get("*", {}), **self.places.get(language, {})}
        return found or None


ODD = (
    Twist("spaces in place of line feeds", {"*": {"END": " "}}, only_tokens=True, in_one_line=True),
    Twist("ends lines as Windows does", {"*": {"END": "\\r\\n"}}, only_tokens=True),
    Twist("spaces before the line feed", {"*": {"END": "  \\n"}}, only_tokens=True),
    Twist("prints to errors", {
        "python": {"BEFORE": "print('PASSED ' * 9999, file=sys.stderr)"},
        "cpp": {"BEFORE": "cerr << string(70000, 'x');"},
        "java": {"BEFORE": 'System.err.print("x".repeat(70000));'},
        "go": {"BEFORE": 'os.Stderr.WriteString(strings.Repeat("x", 70000))'},
        "javascript": {"BEFORE": 'console.error("PASSED".repeat(9999));'},
    }),
    Twist("works in a thread with a large stack", {
        "python": {"RUN": "threading.stack_size(128 << 20); t = threading.Thread(target=main); t.start(); t.join()"},
        "cpp": {"RUN": "thread t(run); t.join();"},
        "java": {"RUN": "Thread t = new Thread(null, () -> { try { run(); } catch (Exception e) { System.exit(9); } },"
                 ' "t", 128 << 20); t.start(); t.join();'},
        "go": {"RUN": "done := make(chan int); go func() { run(); done <- 1 }(); <-done"},
    }),
    Twist("writes a file of its own", {
        "python": {"BEFORE": "open('note', 'w').write('x'); assert open('note').read() == 'x'"},
        "cpp": {"BEFORE": 'ofstream("note") << "x"; if (!ifstream("note").good()) abort();'},
        "java": {"BEFORE": 'java.nio.file.Files.writeString(java.nio.file.Path.of("note"), "x");'},
        "go": {"BEFORE": 'if os.WriteFile("note", []byte("x"), 0600) != nil { panic("no file") }'},
        "javascript": {"BEFORE": 'fs.writeFileSync("note", "x");'},
    }),
    Twist("sleeps first", {
        "python": {"BEFORE": "time.sleep(0.2)"}, "cpp": {"BEFORE": "usleep(200000);"},
        "java": {"BEFORE": "Thread.sleep(200);"}, "go": {"BEFORE": "time.Sleep(200 * time.Millisecond)"},
        "javascript": {"BEFORE": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);"},
    }),
    Twist("makes garbage", {
        "python": {"BEFORE": "for _ in range(20): bytearray(8 << 20)"},
        "cpp": {"BEFORE": "for (int i = 0; i < 20; i++) { vector<char> v(8 << 20, 1); if (v[i] != 1) abort(); }"},
        "java": {"BEFORE": "for (int i = 0; i < 80; i++) { byte[] b = new byte[8 << 20]; if (b[i] != 0) return; }"},
        "go": {"BEFORE": "for i := 0; i < 80; i++ { b := make([]byte, 8 << 20); for j := range b { b[j] = 1 } }"},
        "javascript": {"BEFORE": "for (let i = 0; i < 80; i++) if (new Uint8Array(8 << 20).fill(1)[i] !== 1) return;"},
    }),
)  # fmt: skip
SLOW = (
    Twist("computes for ever", {
        "python": {"BEFORE": "while True: pass"}, "cpp": {"BEFORE": "for (volatile int i = 0;; i++) ;"},
        "java": {"BEFORE": "for (long i = 0; in != null; i++) ;"}, "go": {"BEFORE": "for in != nil { }"},
        "javascript": {"BEFORE": "for (;;) ;"},
    }, "it took more than [0-9.]+ s of CPU time"),
    Twist("prints the answer, and computes for ever", {
        "python": {"AFTER": "while True: pass"}, "cpp": {"AFTER": "for (volatile int i = 0;; i++) ;"},
        "java": {"AFTER": "for (long i = 0; in != null; i++) ;"}, "go": {"AFTER": "for in != nil { }"},
        "javascript": {"AFTER": "for (;;) ;"},
    }, "it took more than [0-9.]+ s of CPU time"),
)  # fmt: skip
CRASHES = (
    Twist("right, but exit code 3", {
        "python": {"AFTER": "os._exit(3)"}, "cpp": {"AFTER": "_exit(3);"}, "java": {"AFTER": "System.exit(3);"},
        "go": {"AFTER": "os.Exit(3)"}, "javascript": {"AFTER": "process.exit(3);"},
    }, "it ended with exit code 3"),
    Twist("right, but an exception", {
        "python": {"AFTER": "raise ValueError('no')"}, "cpp": {"AFTER": "throw 3;"},
        "java": {"AFTER": 'if (in != null) throw new IllegalStateException("no");'}, "go": {"AFTER": 'panic("no")'},
        "javascript": {"AFTER": 'throw new Error("no");'},
    }, "it ended (with exit code [12]|by SIGABRT)"),
    Twist("right, but ended by a signal", {
        "python": {"AFTER": "os.abort()"}, "cpp": {"AFTER": "*(volatile int *) 0 = 1;"},
        "java": {"AFTER": 'Runtime.getRuntime().exec("kill -9 " + ProcessHandle.current().pid()).waitFor();'
                 " Thread.sleep(9000);"},
        "go": {"AFTER": "syscall.Kill(os.Getpid(), syscall.SIGKILL); time.Sleep(9 * time.Second)"},
        "javascript": {"AFTER": "process.abort();"},
    }, "ended (by SIG|with exit code 134)"),
    Twist("takes all memory", {
        "python": {"BEFORE": "hog = bytearray(b'x') * (500 << 20)"},
        "cpp": {"BEFORE": "vector<char> hog(500 << 20, 1); if (hog[9] != 1) return;"},
        "java": {"BEFORE": "List<byte[]> hog = new ArrayList<>(); for (int i = 0; i < 500; i++) hog.add(new byte[1 << 20]);"},
        "go": {"BEFORE": "hog := [][]byte{}; for i := 0; i < 500; i++ { b := make([]byte, 1 << 20); "
               "for j := range b { b[j] = 1 }; hog = append(hog, b) }; defer runtime.KeepAlive(hog)"},
        "javascript": {"BEFORE": "const hog = []; for (let i = 0; i < 500; i++) hog.push(new Uint8Array(1 << 20).fill(1));"},
    }, "it used more than [0-9]+ MiB of memory|OutOfMemoryError"),
    Twist("recursion without end", {
        "python": {"BEFORE": "sys.setrecursionlimit(1000)\n    def f(): return f()\n    f()"},
        "cpp": {"OUTSIDE": "volatile int deep; int f(int i) { int a[99]; a[i % 99] = deep; return f(i + 1) + a[7]; }",
                "BEFORE": "say(f(0));"},
        "java": {"OUTSIDE": "static int f(int i) { return f(i + 1) + 1; }", "BEFORE": "say(f(0));"},
        "go": {"BEFORE": "var f func(int) int; f = func(i int) int { return f(i + 1) + 1 }; say(f(0))"},
        "javascript": {"BEFORE": "const f = i => f(i + 1) + 1; f(0);"},
    }, "it ended (with exit code|by SIG)|it used more than [0-9]+ MiB of memory"),
)  # fmt: skip
CHEATS = (
    Twist("prints the first case's answer", {"*": {"INSIDE": None}}, "wrong answer|cannot read it", right=False),  # type: ignore[dict-item]
    Twist("prints every file that it can read", {
        "python": {"INSIDE": "for top, _, names in os.walk('/workspace'):\n"
                   "    for n in names: say(open(os.path.join(top, n), 'rb').read())"},
        "cpp": {"INSIDE": 'for (auto n : {"/proc/self/environ", "/proc/self/cmdline"}) say(ifstream(n).rdbuf());'},
        "java": {"INSIDE": 'for (File f : new File(".").listFiles())'
                 " if (f.isFile()) say(java.nio.file.Files.readString(f.toPath()));"},
        "go": {"INSIDE": 'b, _ := os.ReadFile("/proc/self/environ"); say(string(b))'},
        "javascript": {"INSIDE": "for (const n of fs.readdirSync('.')) say(n);"},
    }, "wrong answer|cannot read it"),
    Twist("ends its parent", {
        "python": {"INSIDE": "os.kill(os.getppid(), 9)\nos.kill(-1, 9)"}, "cpp": {"INSIDE": "kill(getppid(), 9); kill(-1, 9);"},
        "java": {"INSIDE": "ProcessHandle.current().parent().get().destroyForcibly(); say(-1);"},
        "go": {"INSIDE": "syscall.Kill(os.Getppid(), 9); syscall.Kill(-1, 9)"},
        "javascript": {"INSIDE": "process.kill(process.ppid, 9); say(-1);"},
    }, "."),
    Twist("prints the runner's frames", {
        "python": {"INSIDE": "say('D\\0\\0\\0\\2{}')"}, "cpp": {"INSIDE": 'say(string("D\\0\\0\\0\\2{}", 7));'},
        "java": {"INSIDE": 'say("D\\0\\0\\0\\2{}");'}, "go": {"INSIDE": 'say("D\\x00\\x00\\x00\\x02{}")'},
        "javascript": {"INSIDE": 'say("D\\x00\\x00\\x00\\x02{}");'},
    }, "wrong answer|cannot read it"),
    Twist("ends at once", {
        "python": {"BEFORE": "os._exit(0)"}, "cpp": {"BEFORE": "_exit(0);"},
        "java": {"BEFORE": "Runtime.getRuntime().halt(0);"}, "go": {"BEFORE": "os.Exit(0)"},
        "javascript": {"BEFORE": "process.exit(0);"},
    }, "wrong answer|cannot read it"),
    Twist("does not compile", {
        "python": {"BEFORE": "def (:"}, "cpp": {"BEFORE": "int x = ;"}, "java": {"BEFORE": "int x = ;"},
        "go": {"BEFORE": "x := "}, "javascript": {"BEFORE": "const = ;"},
    }, "compile error|SyntaxError"),
)  # fmt: skip
RIGHT, WRONG = Twist("right"), Twist("wrong", why="wrong answer|cannot read it", right=False)


@dataclass(frozen=True)
class Solution:
    problem: Problem
    language: str
    twist: Twist

    def __str__(self) -> str:
        return f"{self.problem.name}, {self.language}, {self.twist.name}"

    @property
    def why(self) -> str | None:
        """Expression for the note; None: the reward is 1."""
        lines_count = self.problem.fields.get("compare") == "lines" or "interactor" in self.problem.fields
        if (self.twist.only_tokens and self.problem.fields.get("compare") == "exact") or (
            self.twist.in_one_line and lines_count
        ):
            return "wrong answer"
        return self.twist.why

    def text(self) -> str:
        outside, inside = self.problem.solution(self.language, self.twist.right)
        slots = {"END": "\\n", "BEFORE": "", "AFTER": "", "OUTSIDE": "", "RUN": _RUN[self.language], "INSIDE": inside}
        slots |= self.twist.in_language(self.language) or {}
        if slots["INSIDE"] is None:
            slots["INSIDE"] = _say(self.language, self.problem.cases()[0]["output"])
        slots["OUTSIDE"] = f"{outside}\n{slots['OUTSIDE']}"
        if self.language == "python":
            slots |= {name: textwrap.indent(slots[name], "    ") for name in ("BEFORE", "INSIDE")}
        return re.sub(r"@(\w+)@", lambda found: slots[found[1]], _PROGRAMS[self.language]).lstrip()


def _say(language: str, answer: str) -> str:
    escaped = answer.replace("\n", "\\n")
    return f'say("{escaped}")' + ("" if language in ("python", "go") else ";")


def solutions(language: str) -> Iterator[Solution]:
    """Yield a right and a wrong solution of each problem, and one or two of each other sort, in turns."""
    for number, problem in enumerate(PROBLEMS):
        turn = number + LANGUAGES.index(language)
        chosen = [RIGHT, WRONG, SLOW[turn % 2], CRASHES[turn % 5], CHEATS[turn % 6], ODD[turn % 8], ODD[(turn + 3) % 8]]
        yield from (Solution(problem, language, twist) for twist in chosen if twist.in_language(language) is not None)
