"""OpenAI's client with its chat API: a loop of the caller's own, answers in a schema."""

import json

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field


class Ipython(BaseModel):
    code: str


class Answer(BaseModel):
    value: int = Field(ge=0, le=99999)


client = OpenAI(max_retries=10)
tools = [
    pydantic_function_tool(Ipython, name="ipython", description="Run Python code in a session that keeps its state.")
]
messages = [{"role": "system", "content": "Solve the problem. Compute with the ipython tool, one call a turn."}]
answers = []
for question in ("What is 12 * 34?", "What is 56 + 78?"):
    messages.append({"role": "user", "content": question})
    while True:
        said = client.chat.completions.parse(model="policy", messages=messages, tools=tools, response_format=Answer)
        message = said.choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            result = str(eval(call.function.parsed_arguments.code))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not message.tool_calls:
            answers.append(message.parsed.value)
            break
print(json.dumps(answers))
