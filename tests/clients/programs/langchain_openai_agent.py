"""LangChain's agent over OpenAI's API, answers in a schema."""

import json

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Answer(BaseModel):
    value: int = Field(ge=0, le=99999)


@tool
def ipython(code: str) -> str:
    """Run Python code in a session that keeps its state."""
    return str(eval(code))


agent = create_agent(
    ChatOpenAI(model="policy", max_retries=10),
    tools=[ipython],
    system_prompt="Solve the problem. Compute with the ipython tool, one call a turn.",
    response_format=ProviderStrategy(Answer),
)
messages, answers = [], []
for question in ("What is 12 * 34?", "What is 56 + 78?"):
    state = agent.invoke({"messages": [*messages, {"role": "user", "content": question}]})
    messages = state["messages"]
    answers.append(state["structured_response"].value)
print(json.dumps(answers))
