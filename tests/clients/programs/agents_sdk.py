"""OpenAI's agents SDK over the responses API, answers in a schema."""

import json

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel, Field


class Answer(BaseModel):
    value: int = Field(ge=0, le=99999)


@function_tool
def ipython(code: str) -> str:
    """Run Python code in a session that keeps its state."""
    return str(eval(code))


set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(max_retries=10))
agent = Agent(
    name="solver",
    model="policy",
    instructions="Solve the problem. Compute with the ipython tool, one call a turn.",
    tools=[ipython],
    output_type=Answer,
)
history, answers = [], []
for question in ("What is 12 * 34?", "What is 56 + 78?"):
    result = Runner.run_sync(agent, [*history, {"role": "user", "content": question}])
    history = result.to_input_list()
    answers.append(result.final_output.value)
print(json.dumps(answers))
