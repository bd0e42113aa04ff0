"""OpenAI's client with its runner of tools, over its responses API; the answer in a schema."""

import json

from openai import OpenAI, pydantic_responses_function_tool
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
from pydantic import BaseModel


class Ipython(BaseModel):
    code: str


description = "Run Python code in a session that keeps its state."
tool = pydantic_responses_function_tool(Ipython, name="ipython", description=description)
schema = {
    "type": "object",
    "properties": {"value": {"type": "integer", "minimum": 0, "maximum": 99999}},
    "required": ["value"],
    "additionalProperties": False,
}
params = {
    "model": "policy",
    "instructions": "Solve the problem. Compute with the ipython tool, one call a turn.",
    "input": "What is 12 * 34?",
    "text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}},
}
runner = ResponsesToolRunner(functions=[RegisteredFunction.from_tool(tool, execute=lambda call: str(eval(call.code)))])
for turn in runner.iterate(OpenAI(max_retries=10), params):
    if turn.step == 1:
        turn.append_user_text("What is 56 + 78?")
print(json.dumps([json.loads(turn.response.output_text)["value"]]))
