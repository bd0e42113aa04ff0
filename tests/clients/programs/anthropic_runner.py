"""Anthropic's client with its runner of tools, answers in a schema."""

import json

from anthropic import Anthropic, beta_tool
from pydantic import BaseModel, Field


class Answer(BaseModel):
    value: int = Field(ge=0, le=99999)


@beta_tool
def ipython(code: str) -> str:
    """Run Python code in a session that keeps its state."""
    return str(eval(code))


client = Anthropic(max_retries=10)
messages, answers = [], []
for question in ("What is 12 * 34?", "What is 56 + 78?"):
    messages.append({"role": "user", "content": question})
    runner = client.beta.messages.tool_runner(
        model="policy",
        max_tokens=200,
        system="Solve the problem. Compute with the ipython tool, one call a turn.",
        tools=[ipython],
        messages=messages,
        output_format=Answer,
    )
    for message in runner:
        messages.append({"role": "assistant", "content": message.content})
        if (results := runner.generate_tool_call_response()) is not None:
            messages.append(results)
    answers.append(message.parsed_output.value)
print(json.dumps(answers))
