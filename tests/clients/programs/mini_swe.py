"""mini-swe-agent over litellm: one tool, bash."""

import json

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load((package_dir / "config" / "mini.yaml").read_text())
agent = DefaultAgent(LitellmModel(model_name="openai/policy"), LocalEnvironment(), **config["agent"])
ended = agent.run("Compute 12 * 34 in the shell.")
print(json.dumps([int(ended["submission"])]))
