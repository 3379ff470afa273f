{{/* RayServiceSpec before specOverrides.rayService. Usage: $ → YAML map */}}
{{- define "llm-ray.serviceSpec" -}}
{{- $strategy := include "llm-ray.rolloutStrategy" . -}}
{{- $types := dict "blueGreen" "NewCluster" "incremental" "NewClusterWithIncrementalUpgrade" "none" "None" -}}
{{- if .Values.serve.excludeHead }}
excludeHeadPodFromServeSvc: true
{{- end }}
rayClusterDeletionDelaySeconds: {{ int .Values.rollout.deletionDelaySeconds }}
upgradeStrategy:
  type: {{ index $types $strategy | default "NewCluster" }}
  {{- if eq $strategy "incremental" }}
  {{- with .Values.rollout.incremental }}
  clusterUpgradeOptions:
    maxSurgePercent: {{ int .maxSurgePercent }}
    stepSizePercent: {{ int .stepSizePercent }}
    intervalSeconds: {{ int .intervalSeconds }}
    gatewayClassName: {{ .gatewayClassName | quote }}
  {{- end }}
  {{- end }}
serveConfigV2: |
  {{- include "llm-ray.serveConfig" . | nindent 2 }}
rayClusterConfig:
  {{- include "llm-ray.clusterSpec" . | nindent 2 }}
{{- end -}}
