"""pydantic-ai's agent over OpenAI's chat API, answers in a schema."""

import json

from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Answer(BaseModel):
    value: int = Field(ge=0, le=99999)


agent = Agent(
    OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=10))),
    output_type=NativeOutput(Answer),
    instructions="Solve the problem. Compute with the ipython tool, one call a turn.",
)


@agent.tool_plain
def ipython(code: str) -> str:
    """Run Python code in a session that keeps its state."""
    return str(eval(code))


history, answers = None, []
for question in ("What is 12 * 34?", "What is 56 + 78?"):
    result = agent.run_sync(question, message_history=history)
    history = result.all_messages()
    answers.append(result.output.value)
print(json.dumps(answers))
