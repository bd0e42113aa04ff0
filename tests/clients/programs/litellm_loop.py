"""litellm over OpenAI's chat API: a loop of the caller's own, answers in a schema."""

import json

from litellm import completion
from pydantic import BaseModel, Field


class Answer(BaseModel):
    value: int = Field(ge=0, le=99999)


parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
description = "Run Python code in a session that keeps its state."
tools = [{"type": "function", "function": {"name": "ipython", "description": description, "parameters": parameters}}]
messages = [{"role": "system", "content": "Solve the problem. Compute with the ipython tool, one call a turn."}]
answers = []
for question in ("What is 12 * 34?", "What is 56 + 78?"):
    messages.append({"role": "user", "content": question})
    while True:
        said = completion("openai/policy", messages, tools=tools, response_format=Answer, max_retries=10)
        message = said.choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            result = str(eval(json.loads(call.function.arguments)["code"]))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not message.tool_calls:
            answers.append(Answer.model_validate_json(message.content).value)
            break
print(json.dumps(answers))
