"""Chat templates in shapes of real models, written for the tests' tokenizer, whose end of turn is `<|im_end|>`."""

CHATML = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

TRIMMED_HEADERS = """
{%- for m in messages %}{{ '<|start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"""
"""Shape of Llama 3: nothing between two turns, contents trimmed."""

INSTRUCTIONS = """
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}
    {%- elif m.role == 'tool' %}{{ '[RESULT] ' + m.content + ' [/RESULT]' }}
    {%- else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}
{%- endfor %}"""
"""Shape of Mistral: no generation prompt, turns closed by eos."""

GROUPED_RESULTS = """
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Shape of Qwen: results of one turn share a user message."""

UNTHINKING = """
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set content = m.content.split('</think>')[-1].lstrip('\n') %}
        {{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' }}
    {%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Shape of Qwen3: earlier thoughts are removed from assistant text. Sampled ids are not text and stay whole."""

STABLE = {
    "chatml": CHATML,
    "trimmed headers": TRIMMED_HEADERS,
    "instructions": INSTRUCTIONS,
    "grouped results": GROUPED_RESULTS,
    "unthinking": UNTHINKING,
}

TOOLS_BEFORE_LAST_USER = """
{%- set last = messages | selectattr('role', 'equalto', 'user') | list | last %}
{%- for m in messages %}
    {%- if m is sameas last %}{{ '[TOOLS] ' + tools | tojson + ' [/TOOLS]' }}{% endif %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Shape of Mistral 7B v0.3: the tools move to the newest user message."""

LAST_THREE = """
{%- for m in messages[-3:] %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Drops all but the newest messages."""

ALTERNATING = """
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {{- m.content + eos_token }}
{%- endfor %}"""
