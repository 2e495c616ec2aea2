// Objects as JSON in, complaints as JSON out, by the schemas that @kubernetes-models publishes.
const { readFileSync } = require("fs");
const path = require("path");

const folder = path.resolve(process.argv[2], "node_modules");
const packages = {
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
  "cert-manager.io": "@kubernetes-models/cert-manager",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
};

function complaint(object) {
  let [group, version] = object.apiVersion.split("/");
  // The package has GRPCRoute only from before it became v1, which changed nothing in what is used here.
  if (object.kind === "GRPCRoute") version = "v1alpha2";
  const kinds = require(path.join(folder, packages[group], group, version, "index.js"));
  const { apiVersion, kind, ...rest } = object;
  try {
    new kinds[kind](rest).validate();
  } catch (error) {
    return `${kind} ${object.metadata.name}: ${error.message}`;
  }
}

const objects = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(objects.map(complaint).filter(Boolean)));
