"""An agent that is a command: it runs each turn as a shell command in the working folder, and tells the model the exit code."""

SHELL_AGENT = """python3 - <<'EOF'
import json, os, subprocess, urllib.request
said = [{"role": "user", "content": open(os.environ["ROLLYARD_PROMPT_FILE"]).read()}]
while said[-1]["content"] != "exit":
    url, headers = os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"Content-Type": "application/json"}
    headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
    request = urllib.request.Request(url, json.dumps({"model": "any", "messages": said}).encode(), headers)
    text = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    said.append({"role": "assistant", "content": text})
    if text != "exit":
        done = subprocess.run(text, shell=True, capture_output=True, text=True)
        said.append({"role": "user", "content": f"exit code {done.returncode}"})
EOF
"""
"""The turn `exit` is the last one."""
