// A request as a command for a shell.

/** The command; of a key it has only the name of an environment variable. */
export function curl(request, hasKey) {
  const parts = [`curl -N ${new URL(request.path, document.baseURI)}`, "-H 'Content-Type: application/json'"];
  if (hasKey) parts.push('-H "Authorization: Bearer $SPECDEC_API_KEY"');
  parts.push(`-d ${quoted(JSON.stringify(request.body))}`);
  return parts.join(" \\\n  ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
