"""System prompts of the built-in task kinds. Policies are trained on these texts."""

MATH = (
    "Solve the problem. Compute with the ipython tool, one call a turn. When you know the answer, reply without a call "
    "and put it in \\boxed{}."
)
CODE = (
    "Write the file that the task asks for with the tools, one call a turn. Hidden tests check it. When it is done, "
    "reply without a call."
)
