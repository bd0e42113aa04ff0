"""LangChain's agent over Anthropic's API, answers by a tool that it forces."""

import json

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from pydantic import BaseModel, Field


class Answer(BaseModel):
    value: int = Field(ge=0, le=99999)


@tool
def ipython(code: str) -> str:
    """Run Python code in a session that keeps its state."""
    return str(eval(code))


agent = create_agent(
    ChatAnthropic(model="policy", max_tokens=200, max_retries=10),
    tools=[ipython],
    system_prompt="Solve the problem. Compute with the ipython tool, one call a turn.",
    response_format=ToolStrategy(Answer),
)
messages, answers = [], []
for question in ("What is 12 * 34?", "What is 56 + 78?"):
    state = agent.invoke({"messages": [*messages, {"role": "user", "content": question}]})
    messages = state["messages"]
    answers.append(state["structured_response"].value)
print(json.dumps(answers))
