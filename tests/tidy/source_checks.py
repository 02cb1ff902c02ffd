"""Checks of the C++ sources: floors, sizes, names, coroutines, tests."""

import ast
import re

import cpp_text

LINES_OF_HEADER_MAX = 200
LINES_OF_SOURCE_MAX = 450
LINES_OF_FUNCTION_MAX = 70
COLUMNS_MAX = 100

FLOORS = [
    ("include",),
    ("base",),
    ("os", "format"),
    ("plan", "device", "arena", "wire", "storage", "bucket"),
    ("snapshot", "flush", "gather", "replicate", "agree"),
    ("node",),
    ("client", "daemon"),
    ("cli",),
]
FLOOR_OF = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}
SOURCES = (".hpp", ".cpp", ".cxx", ".h", ".c")


def floors(tree):
    """A file includes strictly lower floors, its own module, and no mutex above F3."""
    findings = []
    for path in tree.files(*SOURCES, under=("libckpt/",)):
        module = path.split("/")[1]
        if module not in FLOOR_OF:
            findings.append(f"{path}:1: no floor is known for module {module}")
            continue
        floor = FLOOR_OF[module]
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+(?:"([a-z_]+)/|<([^>]+)>)', line)
            if found is None:
                continue
            other, system = found.groups()
            if other is not None and other != module and FLOOR_OF.get(other, 99) >= floor:
                findings.append(f"{path}:{number}: {module} may not include {other}")
            if system is None:
                continue
            if module == "include" and re.match(r"boost|fmt|nlohmann|cuda|liburing|ope", system):
                findings.append(f"{path}:{number}: a public header may not include {system}")
            if floor > 3 and re.match(r"(mutex|shared_mutex|condition_variable)$", system):
                findings.append(f"{path}:{number}: no mutex above F3")
            if floor == 4 and re.match(r"(unistd\.h|fcntl\.h|sys/|linux/|liburing)", system):
                findings.append(f"{path}:{number}: no raw system calls on F4")
    return findings


# They make or read names of files and directories in which checkpoints lie.
_STORED_NAMES = re.compile(
    r"\b(attempt_path|path_in_attempt|work_directory_name|parse_work_directory|"
    r"parse_step_directory|step_directory_name|shard_directory|shard_place|part_name|"
    r"manifest_name|read_manifest_at|StepCopy|read_record_of|read_part_of)\b|"
    r"storage/(step_directory|attempt|part_reader|shard_copies)\.hpp|site(\(\))?\.objects\(")
_STORES = ("storage", "format")


def seam(tree):
    """Callers of storage say what they want of a checkpoint, and name no file or layout of it."""
    findings = []
    for path in tree.files(*SOURCES, under=("libckpt/",)):
        if path.split("/")[1] in _STORES:
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if found := _STORED_NAMES.search(line):
                findings.append(f"{path}:{number}: {found[0]} is for storage alone")
    return findings


def headers(tree):
    """A header opens with its one sentence, is guarded, and fits on four screens."""
    findings = []
    for path in tree.files(".hpp"):
        lines = tree.text(path).splitlines()
        if len(lines) > LINES_OF_HEADER_MAX:
            findings.append(f"{path}:1: {len(lines)} lines, at most {LINES_OF_HEADER_MAX}")
        if not lines or not re.match(r"// \w[\w ,/]*: \S", lines[0]):
            findings.append(f"{path}:1: the first line is not '// Name: what it is.'")
        if "#pragma once" not in lines:
            findings.append(f"{path}:1: no #pragma once")
        if any(re.match(r"\s*using namespace", line) for line in lines):
            findings.append(f"{path}:1: using namespace in a header")
    return findings


def sources(tree):
    """A source of the library holds one idea, and so it stays short."""
    findings = []
    for path in tree.files(".cpp", ".c", under=("libckpt/", "bindings/")):
        count = len(tree.text(path).splitlines())
        if count > LINES_OF_SOURCE_MAX:
            findings.append(f"{path}:1: {count} lines, at most {LINES_OF_SOURCE_MAX}")
    return findings


def functions(tree):
    """A function fits on a screen and a half."""
    findings = []
    for path in tree.files(*SOURCES):
        for first, last, _, _ in cpp_text.functions(tree.text(path)):
            if last - first + 1 > LINES_OF_FUNCTION_MAX:
                findings.append(f"{path}:{first}: a function of {last - first + 1} lines, "
                                f"at most {LINES_OF_FUNCTION_MAX}")
    for path in tree.files(".py", under=("bindings/",)):
        for node in ast.walk(ast.parse(tree.text(path))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            count = node.end_lineno - node.lineno + 1
            if count > LINES_OF_FUNCTION_MAX:
                findings.append(f"{path}:{node.lineno}: a function of {count} lines, "
                                f"at most {LINES_OF_FUNCTION_MAX}")
    return findings


def columns(tree):
    findings = []
    for path in tree.files(*SOURCES, ".py", ".sh", ".cmake", "CMakeLists.txt"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if len(line) > COLUMNS_MAX:
                findings.append(f"{path}:{number}: {len(line)} columns, at most {COLUMNS_MAX}")
            if "\t" in line:
                findings.append(f"{path}:{number}: a tab")
    return findings


_ALONE = re.compile(
    r"^(?:\(void\)\s*"
    r"|(?:[\w:<>,&*.\s]|->|\[[\w\s,]+\])*(?<![=!<>])=\s*"  # A declaration or an assignment.
    r"|CKPT_CO_TRY\((?:[^()]|\[[\w\s,]+\])*,\s*"
    r"|CKPT_CO_CHECK\(\s*"
    r"|)co_await\b")
_LAMBDA_COROUTINE = re.compile(
    r"\[[^\]\[]+\]\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*(?:mutable\s*)?"
    r"->\s*(?:ckpt::)?(?:Task<|DetachedTask\b|(?:boost::)?asio::awaitable<)")
_SPAWN = "libckpt/base/spawn.cpp"  # Elsewhere it costs compilers too much time.
_BY_REFERENCE = re.compile(r"const std::(string|vector|function)\b[^,()]*&")


def coroutines(tree):
    """co_await stands alone, without braces; no lambda coroutine captures (g++ 12 miscompiles)."""
    findings = []
    for path in tree.files(".hpp", ".cpp"):
        text = tree.text(path)
        if not re.search("co_await|Task|co_spawn", text):
            continue
        for line, statement, ender in cpp_text.statements(text):
            statement = re.sub(r"^\s*#\s*define.*", "", statement, flags=re.DOTALL)
            if "co_await" not in statement:
                continue
            if ender == "{":
                findings.append(f"{path}:{line}: a brace in a statement with co_await")
                continue
            rest = _without_control(statement)
            if rest is None or not _ALONE.match(rest) or rest.count("co_await") > 1:
                findings.append(f"{path}:{line}: co_await does not stand alone")
        code = cpp_text.code_only(text)
        for found in _LAMBDA_COROUTINE.finditer(code):
            line = cpp_text.line_of(code, found.start())
            findings.append(f"{path}:{line}: a lambda coroutine that captures")
        for found in re.finditer(r"\bco_spawn\(", code):
            if path != _SPAWN:
                line = cpp_text.line_of(code, found.start())
                findings.append(f"{path}:{line}: co_spawn instead of base/spawn.hpp")
        for found in re.finditer(r"\bTask<[^;{}()]*\([^;{}]*?\)", code):
            if _BY_REFERENCE.search(found.group(0)):
                line = cpp_text.line_of(code, found.start())
                findings.append(f"{path}:{line}: a coroutine takes a parameter by reference")
    return findings


def _without_control(statement):
    """The statement behind `if (...)`, `else`, `case x:`; None where co_await is in a condition."""
    while True:
        found = re.match(r"(?:else\b|do\b|case [\w:]+:(?!:)|default:|\w+:(?!:))\s*", statement)
        if found:
            statement = statement[found.end():]
            continue
        found = re.match(r"(?:if|while|for|switch)\s*(?:constexpr\s*)?\(", statement)
        if not found:
            return statement
        depth, end = 1, found.end()
        while end < len(statement) and depth > 0:
            depth += {"(": 1, ")": -1}.get(statement[end], 0)
            end += 1
        if "co_await" in statement[:end]:
            return None
        statement = statement[end:].lstrip()


_TASK_WORD = "TO" + "DO"  # Written so that the check does not find itself.
_WORDS = [
    (re.compile(_TASK_WORD + r"(?!\(#\d+\))"), _TASK_WORD + " without an issue number, as (#12)"),
    (re.compile(r"\b(?:FIX" + "ME|XX" + r"X)\b"), "a marker of unfinished work"),
]
_NAMES = [
    (re.compile(r"\b\w*(?:Manager|Util|Utils|Helper)\b"), "a name that says nothing"),
    (re.compile(r"\b\w+Impl\b"), "Impl, outside a pimpl"),
    (re.compile(r"(?<![.>:\w])get_\w+\s*\("), "a function whose name begins with get_"),
    (re.compile(r"\busing namespace std\b"), "using namespace std"),
    (re.compile(r"\bPFN_\w+_v(?:12(?:09|[1-9]\d)\d|1[3-9]\d{3})\b"),
     "a type that headers of CUDA 12.8 do not have"),
]
# A question may begin so: "Who has it?".
_SUBJECTS = [
    (re.compile(r"(?<=// )(?:Who|Whoever) (?![^.\n]*\?)[a-z]+|//.*\. (?:Who|Whoever) [a-z]+"),
     "a sentence whose subject is a clause"),
]
_IN_TESTS = [
    (re.compile(r"\bthis_thread::sleep_\w+|\busleep\s*\(|(?<![\w.>])sleep\s*\("),
     "a test that sleeps"),
    (re.compile(r"\b(?:REQUIRE|CHECK)\(\s*true\s*\)|\bSUCCEED\("), "an assertion that cannot fail"),
]


def words(tree):
    """Banned words and names."""
    findings = []
    for path in tree.files(*SOURCES, ".py", ".sh", ".cmake", ".md"):
        text = tree.text(path)
        _search(findings, path, text, _WORDS)
        if path.endswith(SOURCES):
            code = cpp_text.code_only(text)
            _search(findings, path, code, _NAMES)
            _search(findings, path, text, _SUBJECTS)
            # Those with real processes may have to wait for one.
            if path.startswith("tests/") and not path.startswith(("tests/crash", "tests/cluster")):
                _search(findings, path, code, _IN_TESTS)
    return findings


def _search(findings, path, text, patterns):
    for pattern, meaning in patterns:
        for found in pattern.finditer(text):
            line = cpp_text.line_of(text, found.start())
            findings.append(f"{path}:{line}: {meaning}: {found.group(0)}")


_CASE = re.compile(r"(?:TEST_CASE|TEST_CASE_METHOD|TEMPLATE_TEST_CASE|SCENARIO)\s*\(")


def tests(tree):
    """A test file says its goal and method; a test has a tag of its suite, and an assertion."""
    findings = []
    for path in tree.files("_test.cpp", under=("tests/", "bindings/")):
        text = tree.text(path)
        head = text[:text.find("#")]
        if not text.startswith("// Goal:") or "// Method:" not in head:
            findings.append(f"{path}:1: does not open with // Goal: and // Method:")
        if not _CASE.search(text):
            findings.append(f"{path}:1: no test case")
        parts = path.split("/")
        if parts[1] == "unit":
            for found in _CASE.finditer(text):
                head = text[found.start():text.find("{", found.start())]
                # A hidden one, [.child], is the other process of a test.
                if f"[unit][{parts[2]}]" not in head and "[." not in head:
                    line = cpp_text.line_of(text, found.start())
                    findings.append(f"{path}:{line}: a test without the tags [unit][{parts[2]}]")
        for first, _, header, body in cpp_text.functions(text):
            if not _CASE.match(header) or "[." in "\n".join(text.splitlines()[first - 1:first + 1]):
                continue
            if not re.search(r"require|check|expect|assert", body, re.I):
                findings.append(f"{path}:{first}: a test without an assertion")
    return findings


CHECKS = {
    "floors": floors,
    "seam": seam,
    "headers": headers,
    "sources": sources,
    "functions": functions,
    "columns": columns,
    "coroutines": coroutines,
    "words": words,
    "tests": tests,
}
