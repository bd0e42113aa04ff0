"""smolagents' CodeAgent: its turns are code in a schema."""

import json

from smolagents import CodeAgent, OpenAIModel, tool


@tool
def ipython(code: str) -> str:
    """Run Python code in a session that keeps its state.

    Args:
        code: the code
    """
    return str(eval(code))


model = OpenAIModel("policy", client_kwargs={"max_retries": 10})
agent = CodeAgent(tools=[ipython], model=model, max_steps=4, verbosity_level=0, use_structured_outputs_internally=True)
answers = [
    int(agent.run(question, reset=first))
    for question, first in (("What is 12 * 34?", True), ("What is 56 + 78?", False))
]
print(json.dumps(answers))
