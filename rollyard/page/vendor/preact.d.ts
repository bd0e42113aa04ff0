export type VNode = object;
export type Child = VNode | string | number | boolean | null | undefined | Child[];
export function createElement(type: unknown, props: unknown, ...children: unknown[]): VNode;
export function render(node: Child, parent: Element): void;
