// gRPC's client for Node, from the protos: an answer, a stream, a refusal. Prints what it got as JSON.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const definition = await loader.load("protos/gateway/v1/gateway.proto", { includeDirs: [process.argv[3]], enums: String });
const { GenerationService } = grpc.loadPackageDefinition(definition).specdec.gateway.v1;
const client = new GenerationService(process.argv[2], grpc.credentials.createInsecure());
const generate = (request) =>
  new Promise((resolve, reject) => client.generate(request, (error, answer) => (error ? reject(error) : resolve(answer))));

const whole = await generate({ text: "Say it", n: 2 });
const kinds = [];
let streamed = "";
for await (const event of client.streamGenerate({ request: { text: "Say it" } })) {
  kinds.push(event.event ?? Object.keys(event)[0]);
  streamed += event.round?.text ?? "";
}
const refused = await generate({ text: "Say it", sampling: { temperature: 3 } }).catch((error) => error);
client.close();

console.log(
  JSON.stringify({
    texts: whole.choices.map((choice) => choice.text),
    streamed,
    events: kinds.length,
    refused: grpc.status[refused.code],
  }),
);
