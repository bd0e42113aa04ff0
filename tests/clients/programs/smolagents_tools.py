"""smolagents' ToolCallingAgent: it requires a tool call in each turn, and its own tool `final_answer` ends a run."""

import json

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def ipython(code: str) -> str:
    """Run Python code in a session that keeps its state.

    Args:
        code: the code
    """
    return str(eval(code))


model = OpenAIModel("policy", client_kwargs={"max_retries": 10})
agent = ToolCallingAgent(tools=[ipython], model=model, max_steps=4, verbosity_level=0)
answers = [
    int(agent.run(question, reset=first))
    for question, first in (("What is 12 * 34?", True), ("What is 56 + 78?", False))
]
print(json.dumps(answers))
