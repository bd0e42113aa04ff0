"""Chat templates that change a conversation while rendering it, for the tests' tokenizers: `<|im_end|>` ends turns.

The model gets each rendering word for word, or the template is refused before any conversation.
"""

from __future__ import annotations


def chatml(content: str, header: str = "", prompt: str = "<|im_start|>assistant\\n") -> str:
    """Make a template in the ChatML shape around an expression for the content of message `m`."""
    return (
        header
        + "{%- for m in messages %}{%- set c = m.content %}"
        + "{{- '<|im_start|>' + m.role + '\\n' + ("
        + content
        + ") + '<|im_end|>\\n' }}{%- endfor %}"
        + "{%- if add_generation_prompt %}{{- '"
        + prompt
        + "' }}{%- endif %}"
    )


def of_assistants(content: str) -> str:
    return chatml(f"({content}) if m.role == 'assistant' else c")


PARTS = """
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
    {%- for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
    {{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

ODD = {
    "cuts earlier turns": of_assistants("c[:12] + '...' if c | length > 12 else c"),
    "cuts all but the last turn": of_assistants("c if loop.last or loop.index > messages | length - 2 else c[:8]"),
    "writes turns in capitals": of_assistants("c | upper"),
    "writes turns in small letters": of_assistants("c | lower"),
    "capitalizes everything": chatml("c | capitalize"),
    "measures turns": of_assistants("c if c | length < 9 else '[%d characters omitted]' % (c | length)"),
    "writes the length before a turn": of_assistants("'(%d) ' % (c | length) + c"),
    "counts words": of_assistants("c + ' [%d words]' % (c.split() | length)"),
    "one sentence a line": of_assistants("c.split('. ') | join('.\\n')"),
    "single spaces": of_assistants("c.split() | join(' ')"),
    "strips turns": of_assistants("c.strip()"),
    "trims everything": chatml("c | trim"),
    "strips the end": of_assistants("c.rstrip()"),
    "no line breaks": of_assistants("c | replace('\\n', ' ')"),
    "JSON": chatml("c | tojson"),
    "backwards": chatml("c[::-1]"),
    "other letters": chatml("c | replace('e', '3') | replace('o', '0')"),
    "newest first": chatml("c").replace("in messages %}", "in messages | reverse %}"),
    "puts the time": chatml("c", "{{- strftime_now('%H:%M:%S.%f') }}"),
    "HTML": chatml("c | replace('&', '&amp;') | replace('<', '&lt;')"),
    "says a turn twice": of_assistants("c + ' -- ' + c"),
    "quotes earlier turns": of_assistants("c if loop.last else '> ' + c"),
    "numbers the messages": chatml("'%d: ' % loop.index + c"),
    "numbers from the end": chatml("'%d: ' % loop.revindex + c"),
    "puts the date": chatml("c", "{{- '<|im_start|>system\\nToday is ' + strftime_now('%Y') + '<|im_end|>\\n' }}"),
    "says how long it is": chatml("c", "{{- '<|im_start|>system\\n%d messages<|im_end|>\\n' % (messages | length) }}"),
    "behind the thoughts": of_assistants("c.split('</think>')[-1]"),
    "behind the thoughts, stripped": of_assistants("c.split('</think>')[-1].strip()"),
    "behind the thoughts, no line breaks before": of_assistants("c.split('</think>')[-1].lstrip('\\n')"),
    "without thoughts but the last": of_assistants(
        "c if loop.index > messages | length - 2 else c.split('</think>')[-1].lstrip('\\n')"
    ),
    "opens thoughts": chatml("c", prompt="<|im_start|>assistant\\n<think>\\n"),
    "opens thoughts and leaves them out": of_assistants("c.split('</think>')[-1]").replace(
        "assistant\\n' }}", "assistant\\n<think>\\n' }}"
    ),
    "empty thoughts": chatml("c", prompt="<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n"),
    "content as parts": PARTS,
    "questions in parts beside tools": chatml(
        "c if c is string and not (tools and m.role == 'user') else c | map(attribute='text') | join"
    ),
    "results in parts, as JSON": chatml("(c[0].text | tojson) if m.role == 'tool' else c"),
    "users in parts": PARTS.replace(
        "{%- for part in m.content %}",
        "{%- if m.role != 'user' %}{{ m.content }}{% else %}{%- for part in m.content %}",
    ).replace("{% endif %}{% endfor %}\n", "{% endif %}{% endfor %}{% endif %}\n"),
    "parts, or text": PARTS.replace(
        "{%- for part in m.content %}",
        "{%- if m.content is string %}{{ m.content }}{% else %}{%- for part in m.content %}",
    ).replace("{% endif %}{% endfor %}\n", "{% endif %}{% endfor %}{% endif %}\n"),
    "the last three": """
{%- for m in messages[-3:] %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "system at the end": """
{%- for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- for m in messages if m.role == 'system' %}{{ '<|im_start|>system\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "system in the last question": """
{%- set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n') %}
{%- set last = messages | selectattr('role', 'equalto', 'user') | list | last %}
{%- for m in messages if m.role != 'system' %}
    {{- '<|im_start|>' + m.role + '\\n' + (system + '\\n' if m is sameas last else '') + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "merges neighbours": """
{%- for m in messages %}
    {%- set role = 'user' if m.role == 'tool' else m.role %}
    {%- set before = messages[loop.index0 - 1].role if not loop.first else '' %}
    {%- if role != ('user' if before == 'tool' else before) %}
        {{- ('<|im_end|>\\n' if not loop.first else '') + '<|im_start|>' + role }}
    {%- endif %}
    {{- '\\n' + m.content }}
{%- endfor %}<|im_end|>
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "results among questions": """
{%- for m in messages %}
    {%- if m.role == 'tool' %}{{ '<|im_start|>user\\n<result>' + m.content | trim + '</result><|im_end|>\\n' }}
    {%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "begin and end": """{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}
    {%- else %}{{ '[' + m.role + '] ' + m.content + ' [/' + m.role + ']' }}{% endif %}
{%- endfor %}""",
    "no generation prompt, no space": """{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{{ m.content + eos_token }}
    {%- else %}{{ '[' + m.role + '] ' + m.content + ' [/' + m.role + ']' }}{% endif %}
{%- endfor %}""",
    "only questions and answers": """
{%- for m in messages %}
    {%- if m.role not in ['user', 'assistant'] %}{{ raise_exception(m.role + ' is not known') }}{% endif %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
}

UNUSABLE = {
    "a syntax error": ("{% for m in messages %}{{ m.content }", "line 1: unexpected '}'"),
    "an unknown filter": (chatml("c | nonsense"), "No filter named 'nonsense'"),
    "never ends a turn": ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}", r"never ends a turn"),
    "fails at every question": (chatml("c + nothing.at_all"), "fails on a conversation of one question: UndefinedError"),
    "says nothing": ("{{ '<|im_end|>' }}", "loses the content of a message of role 'user'"),
    "shows pictures": (
        chatml("c | selectattr('type', 'equalto', 'image') | join"), "loses the content of a message of role 'user'"
    ),
    "loses answers": (chatml("c if m.role != 'assistant' else '-'"), "loses the content of a message of role 'assistant'"),
    "loses instructions": (chatml("c if m.role != 'system' else '-'"), "loses the content of a message of role 'system'"),
    "loses questions beside tools": (
        chatml("c if not (tools and m.role == 'user') else c | selectattr('type', 'equalto', 'image') | join"),
        "role 'user' when there are tools, as text",
    ),
}  # fmt: skip
"""Unusable templates, with the expected error of each."""

WITHOUT_RESULTS = {
    "loses results": chatml("c if m.role != 'tool' else ''"),
    "fails at results": chatml("c if m.role != 'tool' else m.call.id.x"),
    "refuses results": chatml("raise_exception('no such role') if m.role == 'tool' else c"),
}
"""Templates that cannot show the result of a call."""
