declare const htm: {
  bind<N>(make: (this: number[], type: unknown, props: unknown, ...children: unknown[]) => N): (strings: TemplateStringsArray, ...values: unknown[]) => N;
};
export default htm;
