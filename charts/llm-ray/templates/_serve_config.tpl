{{/*
What Ray Serve is told, for the deployer (RayCluster) or the operator (RayService). Every key is always there: one that Serve
sees for the first time restarts the replicas. Usage: $ → YAML map
*/}}
{{- define "llm-ray.serveConfig" -}}
proxy_location: {{ .Values.serve.proxyLocation }}
http_options:
  host: 0.0.0.0
  port: {{ int .Values.serve.httpPort }}
  keep_alive_timeout_s: {{ int .Values.serve.keepAliveTimeoutSeconds }}
grpc_options:
  port: {{ int .Values.serve.grpcPort }}
  grpc_servicer_functions:
    - llm_ray.api.proto.llmray.v1.inference_pb2_grpc.add_InferenceServicer_to_server
{{- with include "llm-ray.serveLogging" . | fromYaml }}
logging_config:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "llm-ray.serveTracing" . | fromYaml }}
tracing_config:
  {{- toYaml . | nindent 2 }}
{{- end }}
applications:
  - name: llm
    route_prefix: /
    import_path: llm_ray.serve:build
    args:
      engine:
        {{- include "llm-ray.engineArgs" . | nindent 8 }}
      server:
        {{- include "llm-ray.serverArgs" . | nindent 8 }}
      deployment:
        {{- include "llm-ray.deploymentArgs" . | nindent 8 }}
{{- end -}}

{{/* Values as the app names them: startTimeoutS is start_timeout_s; null keeps what is derived. Usage: (list DERIVED VALUES) → YAML map */}}
{{- define "llm-ray.appSettings" -}}
{{- $out := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $out (regexReplaceAll "([A-Z])" $key "_${1}" | lower) $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* Section engine of the app's args. Usage: $ → YAML map */}}
{{- define "llm-ray.engineArgs" -}}
{{- $gpus := 0 -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $gpus = max $gpus (int .gpus) -}}
{{- end -}}
{{- $derived := dict "model" (include "llm-ray.modelPath" .) "num_gpus_per_rank" (min $gpus 1) -}}
{{- include "llm-ray.appSettings" (list $derived .Values.engine) -}}
{{- end -}}

{{/* Section server of the app's args. Usage: $ → YAML map */}}
{{- define "llm-ray.serverArgs" -}}
{{- $keys := .Values.auth.apiKeys -}}
{{- $file := empty $keys.existingSecret | ternary "" (printf "/etc/llm-ray/keys/%s" $keys.key) -}}
{{- include "llm-ray.appSettings" (list (dict "model_name" .Values.model.name "api_keys_file" $file) .Values.serve.server) -}}
{{- end -}}

{{/* Section deployment of the app's args. Usage: $ → YAML map */}}
{{- define "llm-ray.deploymentArgs" -}}
{{- $totals := include "llm-ray.totals" . | fromJson -}}
{{- $derived := dict "min_replicas" (int $totals.minEngines) "max_replicas" (max 1 (int $totals.maxEngines))
  "placement_strategy" (include "llm-ray.placementStrategy" .) "autoscaling_policy" (include "llm-ray.autoscalingPolicy" .) -}}
{{- include "llm-ray.appSettings" (list $derived .Values.serve.deployment) -}}
{{- end -}}
