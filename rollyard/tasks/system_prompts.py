"""System prompts of the built-in task kinds. Policies are trained on these texts."""

MATH = (
    "Solve the problem. Compute with the ipython tool, one call a turn. When you know the answer, reply without a call "
    "and put it in \\boxed{}."
)
CODE = (
    "Write the file that the task asks for with the tools, one call a turn. Hidden tests check it. When it is done, "
    "reply without a call."
)
HARBOR = (
    "Do what the user asks with the tools, one call a turn. Hidden tests check the result. When it is done, reply without a "
    "call."
)
SKILLS = "Skills are in {folder}, each in a folder of its own: read its SKILL.md before you use it."
SWE = (
    "The repository in {repository} has the issue that the user describes. Change its source code with the tools, one call "
    "a turn, so that the issue is solved. Hidden tests check the result; changes of tests do not count. When it is done, "
    "reply without a call."
)
