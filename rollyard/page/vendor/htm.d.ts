declare const htm: {
  bind<N>(make: (type: unknown, props: unknown, ...children: unknown[]) => N): (strings: TemplateStringsArray, ...values: unknown[]) => N;
};
export default htm;
